"""The outboxes of all sessions, and what of them the store does not have yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parrot_manager.outbox import Outbox


class Unstored:
    """The sessions of which a commit is under way, the longest one first."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    @property
    def oldest_s(self) -> float:
        """For how long the first of them is at it; 0: there is none."""
        first = next(iter(self._since_s.values()), None)
        return time.monotonic() - first if first is not None else 0.0

    def begin(self, session_id: str) -> None:
        """A session's commit begins."""
        self._since_s[session_id] = time.monotonic()

    def end(self, session_id: str) -> None:
        """It is over, one way or the other."""
        self._since_s.pop(session_id, None)


class Outboxes:
    """Each session's outbox, made when there is something for it."""

    def __init__(self, make: Callable[[str], Outbox]) -> None:
        self._make = make
        self._all: dict[str, Outbox] = {}

    def of(self, session_id: str) -> Outbox:
        """A session's outbox."""
        found = self._all.get(session_id)
        if found is None:
            found = self._all[session_id] = self._make(session_id)
        return found

    def idle(self, session_id: str) -> bool:
        """Whether nothing of a session is under way."""
        found = self._all.get(session_id)
        return found is None or found.idle

    async def settled(self, session_id: str, timeout_s: float) -> None:
        """Returns once everything decided about a session is stored.

        Raises:
            Fault: what its outbox raises.
        """
        found = self._all.get(session_id)
        if found is not None:
            await found.settled(timeout_s)

    async def quiet(self, session_id: str) -> None:
        """Returns once nothing of a session is under way."""
        found = self._all.get(session_id)
        if found is not None:
            await found.quiet()

    async def all_quiet(self) -> None:
        """Returns once each of them had nothing under way."""
        for session_id in list(self._all):
            await self.quiet(session_id)

    def close(self) -> None:
        """What is not carried out is dropped, and nothing more is taken."""
        for outbox in self._all.values():
            outbox.close()

    def forget(self, session_id: str) -> None:
        """A session left memory: what is not carried out is dropped."""
        found = self._all.pop(session_id, None)
        if found is not None:
            found.close()
