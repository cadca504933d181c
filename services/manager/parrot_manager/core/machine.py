"""The machine: events in, commands out. The same events give the same commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from parrot_manager.core import attempts, engines, events, sessions
from parrot_manager.core.commands import Command
from parrot_manager.core.state import Policy, State
from parrot_manager.core.turn import Turn


def _on_timer(turn: Turn, event: events.TimerFired) -> None:
    handle = {
        events.TimerKind.SESSION_DEADLINE: sessions.expire,
        events.TimerKind.NO_ENGINE: engines.give_up_waiting,
        events.TimerKind.FORGET: sessions.forget,
    }[event.timer.kind]
    handle(turn, event.timer.id)


def _on_drain(turn: Turn, event: events.DrainStarted) -> None:
    turn.state.draining = True


_HANDLERS: Final[dict[type, Callable[[Turn, Any], None]]] = {
    events.SessionOpened: sessions.on_opened,
    events.SessionRestored: sessions.on_restored,
    events.SessionClosing: sessions.on_closing,
    events.CallsAccepted: sessions.on_accepted,
    events.EngineJoined: engines.on_joined,
    events.EngineDraining: engines.on_draining,
    events.EngineLost: engines.on_lost,
    events.SlotFreed: engines.on_slot_freed,
    events.AttemptStarted: attempts.on_started,
    events.AttemptStreaming: attempts.on_streaming,
    events.AttemptDone: attempts.on_done,
    events.AttemptFailed: attempts.on_failed,
    events.AttemptLost: attempts.on_lost,
    events.AttemptUndelivered: attempts.on_undelivered,
    events.TimerFired: _on_timer,
    events.DrainStarted: _on_drain,
}


class Machine:
    """Holds the state and takes one event at a time."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.state = State()

    def step(self, event: events.Event, now_ms: int) -> list[Command]:
        """What is to be done about an event that happened at `now_ms` (Unix milliseconds)."""
        turn = Turn(self.state, self.policy, now_ms)
        _HANDLERS[type(event)](turn, event)
        turn.place()
        return turn.commands()
