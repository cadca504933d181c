"""The store: the manager's own in-memory one, whose writes take time, fail, and are done unheard of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session
from parrot_manager.store.base import SessionRecord
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.memory_leases import MemoryLeases
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from tests.simulation.audit import Audit
from tests.simulation.dice import Dice
from tests.simulation.kernel import Answer, Clock, Process
from tests.simulation.reader import TENANT, at_once

T = TypeVar("T")
DEADLINE_MS = 5_000


@dataclass(slots=True)
class Disk:
    """How the store's machine does.

    Attributes:
        slowness: how many times longer than usual a write takes.
        loss: how many answers of a hundred are lost, and how many writes are not done.
    """

    down_until_ms: int = 0
    slowness: int = 1
    loss: float = 0.0


class SimStore:
    """Carries requests to the store, and answers back. What was sent is done, even if its sender has died.

    Attributes:
        written: told after each write.
    """

    def __init__(self, clock: Clock, dice: Dice, audit: Audit) -> None:
        self.rows = MemoryStore(clock=lambda: clock.now_ms / 1000)
        self.disk = Disk()
        self._process = Process(clock, "store")
        self._dice = dice
        self._audit = audit
        self.written: Callable[[], None] = lambda: None

    def epoch_of(self, shard: int) -> int:
        """The epoch under which a shard may be written."""
        leases = self.rows.leases
        assert isinstance(leases, MemoryLeases)
        return leases.epoch_of(shard)

    async def insert_session(self, session: Session, epoch: int) -> None:
        """As `Store.insert_session`."""

        async def write() -> None:
            await self.rows.insert_session(session, epoch)
            self.written()

        await self.ask(write)

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        """As `Store.insert_session_with_calls`."""

        async def write() -> bool:
            new = await self.rows.insert_session_with_calls(session, accepted, epoch)
            if new:
                self._audit.inserted(accepted)
            self.written()
            return new

        return await self.ask(write)

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        """As `Store.insert_calls`."""

        async def write() -> None:
            await self.rows.insert_calls(accepted, epoch)
            self._audit.inserted(accepted)
            self.written()

        await self.ask(write)

    async def remove_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        """As `Store.remove_calls`."""

        async def write() -> None:
            await self.rows.remove_calls(accepted, epoch)
            self._audit.removed(accepted)
            self.written()

        await self.ask(write)

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        """As `Store.commit`."""

        async def write() -> None:
            await self.rows.commit(session_id, changes, epoch)
            self._audit.committed(session_id, changes)
            self.written()

        await self.ask(write)

    async def delete_session(self, session_id: str, epoch: int) -> None:
        """As `Store.delete_session`."""

        async def write() -> None:
            await self.rows.delete_session(TENANT, session_id, epoch)
            self.written()

        await self.ask(write)

    async def load(self, shards: Collection[int], ended_after_ms: int) -> list[SessionRecord]:
        """As `Store.load_live`."""
        return await self.ask(lambda: self.rows.load_live(shards, ended_after_ms))

    async def load_session(self, session_id: str) -> SessionRecord | None:
        """One session."""
        return await self.ask(lambda: self.rows.load_session(TENANT, session_id))

    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        """As `Store.read_value`."""
        return await self.ask(lambda: self.rows.read_value(session_id, variable_id))

    async def read_values(self, session_id: str, variable_ids: Sequence[str]) -> Mapping[str, bytes]:
        """As `Store.read_values`."""
        return await self.ask(lambda: self.rows.read_values(session_id, variable_ids))

    async def ask(self, do: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the store answers.

        Raises:
            Fault: what the store refuses it with, and `unavailable`.
        """
        answer: Answer[T] = Answer()
        delay_ms = self._dice.between(1, 5) * self.disk.slowness
        self._process.after(delay_ms, self._do, do, answer)
        return await answer.get(DEADLINE_MS, _unavailable())

    def _do(self, do: Callable[[], Coroutine[Any, Any, T]], answer: Answer[T]) -> None:
        if self._process.clock.now_ms < self.disk.down_until_ms or self._dice.chance(self.disk.loss):
            answer.refuse(_unavailable())
            return
        try:
            result = at_once(do())
        except Fault as fault:
            answer.refuse(fault)
            return
        if self._dice.chance(self.disk.loss):
            answer.refuse(_unavailable())
        else:
            self._process.after(self._dice.between(0, 3), answer.give, result)


def _unavailable() -> Fault:
    return Fault(errors.UNAVAILABLE, "the store does not answer", retry_after_ms=1000)
