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
        self._handles: dict[Timer, asyncio.TimerHandle] = {}

    def arm(self, timer: Timer, at_ms: int) -> None:
        """Fires `timer` at a Unix time; at once when that has passed."""
        self.disarm(timer)
        delay_s = max(0, at_ms - clock.now_ms()) / 1000
        self._handles[timer] = asyncio.get_running_loop().call_later(delay_s, self._ring, timer)

    def disarm(self, timer: Timer) -> None:
        """Forgets a timer, if it is armed."""
        handle = self._handles.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Forgets all."""
        for timer in list(self._handles):
            self.disarm(timer)

    def _ring(self, timer: Timer) -> None:
        del self._handles[timer]
        self._fire(timer)
