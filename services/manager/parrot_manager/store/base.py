"""What the manager asks of its store.

The contract every store keeps, and one suite of tests holds it to:

- A write returns once it is durable. It may be repeated, whole, without changing anything more:
  inserts leave rows that are there, and what has ended (a session, call, variable or attempt) never
  changes again, so that a write whose outcome was lost is simply done anew.
- One write is one transaction: all of it or nothing.
- Every write names the epoch under which its writer holds the session's shard. Once the shard has
  changed hands it is refused (`wrong_manager`), whenever it was sent: a manager that was asleep
  meanwhile writes nothing. (The epoch is a fencing token: Kleppmann, "Designing Data-Intensive
  Applications", chapter 8.)
- Conflicts and outages that pass are retried inside, with back-off, for the store's deadline. Then
  the write raises `unavailable`, and its outcome is unknown until it was repeated or undone.
- What a tenant with limits has of them is counted in the same transactions. What would exceed them is
  refused (`quota_exceeded`; `too_large` where it never could fit), and then nothing is stored.
- No error of the store is ever recorded as a call's result.
- A session's writes come one after another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Attempt, Batch, Call, Session, SessionState, Variable
from parrot_manager.store.leases import Leases
from parrot_manager.store.listing import ListedSession, Place
from parrot_manager.store.tenants import Tenants
from parrot_runtime import errors
from parrot_runtime.errors import Fault


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session and all it holds, values excepted. Calls and blocks come in the order of their numbers.

    Attributes:
        attempts: the last one of each call that has not ended, whatever became of it.
    """

    session: Session
    calls: tuple[Call, ...] = ()
    variables: tuple[Variable, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    batches: tuple[Batch, ...] = ()
    blocks: tuple[Block, ...] = ()


class Store(ABC):
    """Sessions, calls, variables with their values, and attempts.

    Every method raises `Fault` (`unavailable`) when the store can't be reached in time; every write
    also `wrong_manager`, when `epoch` is not that of the session's shard any more.
    """

    @property
    @abstractmethod
    def leases(self) -> Leases:
        """Who holds which shard."""

    @property
    @abstractmethod
    def tenants(self) -> Tenants:
        """Keys and limits."""

    @abstractmethod
    async def insert_session(self, session: Session, epoch: int) -> None:
        """Adds a session.

        Raises:
            Fault: `quota_exceeded`.
        """

    @abstractmethod
    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        """Adds a session and its first batch; False, and nothing is added, where the session is there.

        It may be there by a try of this very write that was not heard of: then so is the batch.

        Raises:
            Fault: `quota_exceeded`, `too_large`.
        """

    @abstractmethod
    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        """Adds a batch to a session: calls, blocks, the variables that come with them, values of those.

        Raises:
            Fault: `quota_exceeded`, `too_large`.
        """

    @abstractmethod
    async def remove_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        """Undoes an `insert_calls` whose outcome is unknown and that nobody was told of.

        Of an `insert_session_with_calls` the session stays, if it is there.
        """

    @abstractmethod
    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        """Adds what is new, and brings the rest up to its newest snapshots."""

    @abstractmethod
    async def find_live(self, shards: Collection[int], ended_after_ms: int) -> list[list[str]]:
        """The ids of the sessions of some shards that their manager must know, oldest first.

        Those that are open, those with calls that have not ended, and those that ended after
        `ended_after_ms` and are not purged. They come in slices that are small enough to be loaded one
        after another beside other work.
        """

    @abstractmethod
    async def load(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        """Sessions with all they hold, oldest first; nobody may write them meanwhile.

        Calls that have not ended come with their spec, and so do blocks.
        """

    async def load_live(self, shards: Collection[int], ended_after_ms: int) -> list[SessionRecord]:
        """All that `find_live` finds, at once."""
        slices = await self.find_live(shards, ended_after_ms)
        return [record for ids in slices for record in await self.load(ids)]

    @abstractmethod
    async def read_session(self, session_id: str) -> Session | None:
        """One session, whosever it is, without what it holds; None when there is none."""

    @abstractmethod
    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        """One session of a tenant, without calls' specs and attempts; None when there is none."""

    @abstractmethod
    async def list_sessions(
        self, tenant: str, state: SessionState | None, after: Place | None, limit: int
    ) -> list[ListedSession]:
        """A tenant's sessions of all shards, newest first: those behind `after`, `limit` at the most.

        None: in any state; from the newest on.
        """

    @abstractmethod
    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        """A variable's value, UTF-8; None when it has none."""

    @abstractmethod
    async def read_values(self, session_id: str, variable_ids: Sequence[str]) -> dict[str, bytes]:
        """The values of those of some variables that have one."""

    @abstractmethod
    async def unpurged(self, shard: int, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        """(tenant, session id) of sessions that ended before and whose bus subjects still stand."""

    @abstractmethod
    async def mark_purged(self, shard: int, session_ids: Sequence[str], epoch: int) -> None:
        """Notes that the bus holds nothing of these sessions of a shard any more."""

    @abstractmethod
    async def delete_session(self, tenant: str, session_id: str, epoch: int) -> None:
        """Deletes a tenant's session that has ended, with all it holds."""

    @abstractmethod
    async def delete_ended(self, shard: int, ended_before_ms: int, limit: int, epoch: int) -> int:
        """Deletes, with all they hold, sessions that ended before and are purged; returns how many."""


def refused(session_id: str = "") -> Fault:
    """What a write is refused with whose shard another manager holds."""
    return Fault(
        errors.WRONG_MANAGER,
        "another manager serves this session; ask it",
        session_id=session_id,
        retry_after_ms=100,
    )
