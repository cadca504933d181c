"""What the manager asks of its store.

The contract every store keeps, and one suite of tests holds it to:

- A write returns once it is durable. It may be repeated, whole, without changing anything more:
  inserts leave rows that are there, and what has ended (a session, call or variable) never changes
  again, so that a write whose outcome was lost is simply done anew.
- One write is one transaction: all of it or nothing.
- Conflicts and outages that pass are retried inside, with back-off, for the store's deadline. Then
  the write raises `unavailable`, and its outcome is unknown until it was repeated or undone.
- No error of the store is ever recorded as a call's result.
- There is one writer, the manager; a session's writes come one after another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import Attempt, Call, Session, Value, Variable


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session and all it holds, values excepted. Calls come in the order of their numbers."""

    session: Session
    calls: tuple[Call, ...] = ()
    variables: tuple[Variable, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class Store(ABC):
    """Sessions, calls, variables with their values, and attempts.

    Every method raises `Fault` (`unavailable`) when the store can't be reached in time.
    """

    @abstractmethod
    async def insert_session(self, session: Session) -> None:
        """Adds a session."""

    @abstractmethod
    async def insert_calls(
        self,
        session_id: str,
        calls: Sequence[Call],
        variables: Sequence[Variable],
        values: Sequence[Value],
    ) -> None:
        """Adds a batch to a session: calls, the variables that come with them, and values of those."""

    @abstractmethod
    async def remove_calls(
        self, session_id: str, calls: Sequence[Call], variables: Sequence[Variable]
    ) -> None:
        """Undoes an `insert_calls` whose outcome is unknown and that nobody was told of."""

    @abstractmethod
    async def commit(self, session_id: str, changes: Changes) -> None:
        """Brings rows up to their newest snapshots. Attempts that are new are added."""

    @abstractmethod
    async def load_live(self, ended_after_ms: int) -> list[SessionRecord]:
        """The sessions a manager must know when it starts, oldest first.

        Those that are open, those with calls that have not ended, and those that ended after
        `ended_after_ms`. Calls that have not ended come with their spec.
        """

    @abstractmethod
    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        """One session of a tenant, without specs and attempts; None when there is none."""

    @abstractmethod
    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        """A variable's value, UTF-8; None when it has none."""

    @abstractmethod
    async def unpurged(self, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        """(tenant, session id) of sessions that ended before and whose bus subjects still stand."""

    @abstractmethod
    async def mark_purged(self, session_ids: Sequence[str]) -> None:
        """Notes that the bus holds nothing of these sessions any more."""
