"""The machine: events in, commands out. The same events give the same commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from parrot_manager.core import (
    attempts,
    cancels,
    deducing,
    engines,
    events,
    joining,
    native_events,
    natives,
    restoring,
    sessions,
)
from parrot_manager.core.blocks.advance import advance, on_values_read
from parrot_manager.core.commands import Command
from parrot_manager.core.deducing import deduce_objectives
from parrot_manager.core.queueing import place
from parrot_manager.core.scheduling import Fleet
from parrot_manager.core.state import Policy, State
from parrot_manager.core.turn import Turn


def _on_timer(turn: Turn, event: events.TimerFired) -> None:
    handle = {
        events.TimerKind.SESSION_DEADLINE: sessions.expire,
        events.TimerKind.NO_ENGINE: engines.give_up_waiting,
        events.TimerKind.RETRY: attempts.retry,
        events.TimerKind.ADOPT: engines.give_up_adoption,
        events.TimerKind.OBJECTIVES: deducing.on_time,
        events.TimerKind.FORGET: sessions.forget,
        events.TimerKind.CLAIM: natives.give_up_claim,
    }[event.timer.kind]
    handle(turn, event.timer.id)


def _on_drain(turn: Turn, event: events.DrainStarted) -> None:
    turn.state.draining = True


_HANDLERS: Final[dict[type, Callable[[Turn, Any], None]]] = {
    events.SessionOpened: sessions.on_opened,
    events.SessionRestored: restoring.on_restored,
    events.SessionReleased: restoring.on_released,
    events.SessionClosing: sessions.on_closing,
    events.CallsAccepted: sessions.on_accepted,
    events.VariablesWanted: joining.on_wanted,
    events.CallsCancelled: cancels.on_cancelled,
    native_events.CallClaimed: natives.on_claimed,
    native_events.ClaimRenewed: natives.on_renewed,
    native_events.NativeDone: natives.on_done,
    native_events.NativeFailed: natives.on_failed,
    events.EngineJoined: engines.on_joined,
    events.EngineAdopted: engines.on_adopted,
    events.EngineReported: engines.on_reported,
    events.ContextsChanged: engines.on_contexts,
    events.EngineDraining: engines.on_draining,
    events.EngineLost: engines.on_lost,
    events.SlotFreed: engines.on_slot_freed,
    events.AttemptStarted: attempts.on_started,
    events.AttemptStreaming: attempts.on_streaming,
    events.AttemptDone: attempts.on_done,
    events.AttemptFailed: attempts.on_failed,
    events.AttemptLost: attempts.on_lost,
    events.AttemptUndelivered: attempts.on_undelivered,
    events.ValuesRead: on_values_read,
    events.TimerFired: _on_timer,
    events.DrainStarted: _on_drain,
}


class Machine:
    """Holds the state and takes one event at a time."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.state = State(fleet=Fleet(self.policy.scheduling))

    def step(self, event: events.Event, now_ms: int) -> list[Command]:
        """What is to be done about an event that happened at `now_ms` (Unix milliseconds)."""
        turn = Turn(self.state, self.policy, now_ms)
        _HANDLERS[type(event)](turn, event)
        advance(turn)
        deduce_objectives(turn)
        place(turn)
        attempts.call_back(turn)
        sessions.close_finished(turn)
        for command in self.state.fleet.drain_keeps():
            turn.tell_fleet(command)
        return turn.commands()
