"""Those who wait for a variable's end, or for a call to be theirs, to be stored."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from parrot_manager.core.commands import Changes


def of_call(call_id: str) -> str:
    """What stands for a call where variables' ids stand, which have no slash."""
    return f"call/{call_id}"


class Waiters:
    """Wakes whoever waits, once it is stored: of a variable its end, of a client's call any news."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, asyncio.Event]] = {}

    def stored(self, changes: Changes) -> None:
        """Tells of changes the store has."""
        for variable in changes.variables:
            if variable.state.ended:
                self._wake(variable.session_id, variable.id)
        for call in changes.calls:
            if call.by_client:
                self._wake(call.session_id, of_call(call.id))

    async def wait(self, session_id: str, waited_for: str, timeout_s: float) -> None:
        """Returns when that is stored, or after `timeout_s`; which of them, a look tells.

        Args:
            waited_for: a variable's id, or `of_call`.
        """
        event = self._waiting.setdefault(session_id, {}).setdefault(waited_for, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)

    def _wake(self, session_id: str, waited_for: str) -> None:
        event = self._waiting.get(session_id, {}).pop(waited_for, None)
        if event is not None:
            event.set()

    def forget(self, session_id: str) -> None:
        """Drops what is kept for a session's waiters; they return."""
        for event in self._waiting.pop(session_id, {}).values():
            event.set()
