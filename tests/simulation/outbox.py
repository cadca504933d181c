"""A session's commands on their way, in order and behind its commits: as `parrot_manager.outbox`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from parrot_manager.core import commands
from parrot_manager.core.commands import Changes
from parrot_manager.outbox import merge
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from tests.simulation.kernel import Signal, sleep

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager

RETRY_MS = 250


class Outbox:
    """Commits what piles up, and only then does what follows from it."""

    def __init__(self, manager: SimManager, session_id: str) -> None:
        self._manager = manager
        self._session_id = session_id
        self._epoch = manager.shards.held.get(shard_of(session_id), 0)
        self._pending: list[commands.Command] = []
        self._effects: deque[commands.Effect] = deque()
        self._committing = False
        self._performing = False
        self._closed = False
        self._put = 0
        self._done = 0
        self._progress = Signal()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not (self._committing or self._performing)

    def put(self, told: Iterable[commands.Command]) -> None:
        """Takes commands over."""
        self._pending += told
        self._put += 1
        if not self._committing:
            self._committing = True
            self._manager.process.spawn(self._commit_all)

    def close(self) -> None:
        """Nothing more of it is done: the session is another manager's, or over."""
        self._closed = True
        self._progress.notify()

    async def settled(self, timeout_ms: int) -> None:
        """Returns once everything put so far is stored.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        wanted = self._put
        while self._done < wanted:
            if self._closed or not await self._progress.wait(timeout_ms):
                raise Fault(errors.UNAVAILABLE, "the session's changes are not stored yet")

    async def quiet(self, timeout_ms: int) -> None:
        """Returns once everything decided is stored and carried out.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        until_ms = self._manager.clock.now_ms + timeout_ms
        while not self.idle:
            left_ms = until_ms - self._manager.clock.now_ms
            if self._closed or left_ms <= 0 or not await self._progress.wait(left_ms):
                raise Fault(errors.UNAVAILABLE, "what was decided is not carried out")

    async def _commit_all(self) -> None:
        while self._pending and not self._closed:
            batch, self._pending = self._pending, []
            put = self._put
            changes = merge([command.changes for command in batch if isinstance(command, commands.Persist)])
            if changes != Changes() and not await self._commit(changes):
                return
            self._release(batch)
            self._done = put
            self._progress.notify()
        self._committing = False

    async def _commit(self, changes: Changes) -> bool:
        while not self._closed:
            try:
                await self._manager.store.commit(self._session_id, changes, self._epoch)
            except Fault as fault:
                if fault.kind is errors.WRONG_MANAGER:
                    self._lost()
                    return False
                await sleep(RETRY_MS)
            else:
                self._manager.changed.notify()
                if self._session_id in self._manager.machine.state.sessions:
                    self._manager.tellings.committed(self._session_id, changes)
                return not self._closed
        return False

    def _lost(self) -> None:
        shard = shard_of(self._session_id)
        if self._manager.shards.holds(shard, self._epoch):
            self._manager.drop(shard)
        self.close()

    def _release(self, batch: list[commands.Command]) -> None:
        for command in batch:
            if isinstance(command, commands.Cancel):
                self._manager.effects.cancel(command)
            elif not isinstance(command, commands.Persist):
                self._effects.append(command)  # type: ignore[arg-type]
        if self._effects and not self._performing:
            self._performing = True
            self._manager.process.spawn(self._perform_all)

    async def _perform_all(self) -> None:
        while self._effects and not self._closed:
            await self._manager.holder.until_valid()
            await self._manager.effects.perform(self._effects.popleft())
        self._performing = False
