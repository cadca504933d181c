"""Timers of the state machine, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parrot_manager import clock
from parrot_manager.core.events import Timer


class Timers:
    """Fires each armed timer once, at its time; arming again replaces."""

    def __init__(self, fire: Callable[[Timer], None]) -> None:
        self._fire = fire
        self._handles: dict[str, dict[Timer, asyncio.TimerHandle]] = {}
        """By what they belong to: a session, or a model."""

    def arm(self, timer: Timer, at_ms: int) -> None:
        """Fires `timer` at a Unix time; at once when that has passed."""
        self.disarm(timer)
        delay_s = max(0, at_ms - clock.now_ms()) / 1000
        handle = asyncio.get_running_loop().call_later(delay_s, self._ring, timer)
        self._handles.setdefault(_owner(timer), {})[timer] = handle

    def disarm(self, timer: Timer) -> None:
        """Forgets a timer, if it is armed."""
        handle = self._drop(timer)
        if handle is not None:
            handle.cancel()

    def disarm_session(self, session_id: str) -> None:
        """Forgets the timers of a session and of its calls."""
        for handle in self._handles.pop(session_id, {}).values():
            handle.cancel()

    def close(self) -> None:
        """Forgets all."""
        for owner in list(self._handles):
            self.disarm_session(owner)

    def _ring(self, timer: Timer) -> None:
        self._drop(timer)
        self._fire(timer)

    def _drop(self, timer: Timer) -> asyncio.TimerHandle | None:
        found = self._handles.get(_owner(timer), {})
        handle = found.pop(timer, None)
        if handle is not None and not found:
            del self._handles[_owner(timer)]
        return handle


def _owner(timer: Timer) -> str:
    return timer.id.partition("/")[0]
