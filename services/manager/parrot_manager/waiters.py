"""Those who wait for a variable's end to be stored."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from parrot_manager.core.commands import Changes


class Waiters:
    """Wakes whoever waits for a variable, once its end is stored."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, asyncio.Event]] = {}

    def stored(self, changes: Changes) -> None:
        """Tells of changes the store has."""
        for variable in changes.variables:
            if variable.state.ended:
                event = self._waiting.get(variable.session_id, {}).pop(variable.id, None)
                if event is not None:
                    event.set()

    async def wait(self, session_id: str, variable_id: str, timeout_s: float) -> None:
        """Returns when the variable's end is stored, or after `timeout_s`; which of them, a look tells."""
        event = self._waiting.setdefault(session_id, {}).setdefault(variable_id, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)

    def forget(self, session_id: str) -> None:
        """Drops what is kept for a session's waiters; they return."""
        for event in self._waiting.pop(session_id, {}).values():
            event.set()
