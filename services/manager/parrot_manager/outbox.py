"""Carries out the machine's commands, each session's in order and behind its commits.

What piles up while a commit is under way is merged into the next one, and what can wait is, for a moment,
into whichever comes. A commit is retried until
the store has it, or says that the session is another manager's now; effects never hold up commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import structlog

from parrot_manager.core.commands import Cancel, Changes, Command, Effect, Persist
from parrot_manager.outboxes import Unstored
from parrot_manager.store.base import Store, refused
from parrot_manager.store.retry import TROUBLE
from parrot_manager.tasks import Tasks
from parrot_runtime import errors
from parrot_runtime.errors import Fault

RETRY_S: Final = 1.0
WAIT_S: Final = 0.5
"""What can wait does so for others to join it: a transaction for each is dear to processes and disk."""

log = structlog.get_logger()


class Outbox:
    """One session's commands on their way.

    Args:
        committed: told of changes once they are stored.
        cancel: carries out a `Cancel`; doesn't wait.
        perform: carries out any other effect.
        epoch: under which the session's shard is held.
        allowed: returns once effects may be carried out.
        lost: told of the session and epoch for which the store refused a commit: the shard is another
            manager's.
        unstored: told of commits that are under way.
    """

    def __init__(
        self,
        session_id: str,
        store: Store,
        tasks: Tasks,
        *,
        committed: Callable[[Changes], None],
        cancel: Callable[[Cancel], None],
        perform: Callable[[Effect], Awaitable[None]],
        epoch: int,
        allowed: Callable[[], Awaitable[None]],
        lost: Callable[[str, int], None],
        unstored: Unstored | None = None,
    ) -> None:
        self._session_id = session_id
        self._store = store
        self._tasks = tasks
        self._committed = committed
        self._cancel = cancel
        self._perform = perform
        self._epoch = epoch
        self._allowed = allowed
        self._lost = lost
        self._unstored = unstored if unstored is not None else Unstored()
        self._closed = False
        self._pending: list[Command] = []
        self._effects: deque[Effect] = deque()
        self._committing = False
        self._performing = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._put = 0
        self._done = 0
        self._progress = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not (self._pending or self._committing or self._performing)

    def put(self, commands: Iterable[Command]) -> None:
        """Takes commands over; never waits."""
        if self._closed:
            return
        self._pending += commands
        self._put += 1
        if not all(isinstance(command, Persist) and command.can_wait for command in self._pending):
            self._begin()
        elif self._timer is None and not self._due:
            self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._begin)

    async def settled(self, timeout_s: float) -> None:
        """Returns once everything put so far is stored.

        Raises:
            Fault: `unavailable`, when that takes longer than `timeout_s`; `wrong_manager`, when it was
                not to be.
        """
        wanted = self._put
        self._begin()
        try:
            async with asyncio.timeout(timeout_s):
                while self._done < wanted:
                    if self._closed:
                        raise refused(self._session_id)
                    await self._progress.wait()
        except TimeoutError:
            raise Fault(
                errors.UNAVAILABLE,
                "the database can't be reached; nothing is lost, try again",
                session_id=self._session_id,
                retry_after_ms=1000,
            ) from None

    async def quiet(self) -> None:
        """Returns once nothing is under way."""
        while not self.idle:
            self._begin()
            await self._progress.wait()

    def close(self) -> None:
        """Drops what has not been carried out, and takes nothing more."""
        self._closed = True
        self._stop_waiting()
        self._pending.clear()
        self._effects.clear()
        self._notify()

    def _begin(self) -> None:
        """Stores what is pending, now."""
        self._stop_waiting()
        self._due = bool(self._pending)
        if self._due and not self._committing:
            self._committing = True
            self._tasks.spawn(self._commit_all(), f"commit {self._session_id}")

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _commit_all(self) -> None:
        while self._due:
            self._due = False
            batch, self._pending = self._pending, []
            put = self._put
            changes = merge([command.changes for command in batch if isinstance(command, Persist)])
            if changes != Changes():
                self._unstored.begin(self._session_id)
                try:
                    await self._commit(changes)
                finally:
                    self._unstored.end(self._session_id)
                if self._closed:
                    break
                self._committed(changes)
            self._release(batch)
            self._done = put
            self._notify()
        self._committing = False
        self._notify()

    async def _commit(self, changes: Changes) -> None:
        while not self._closed:
            try:
                await self._store.commit(self._session_id, changes, self._epoch)
            except Fault as fault:
                if fault.kind is errors.WRONG_MANAGER:
                    self._refused()
                    return
                log.warning("commit waits", session_id=self._session_id, reason=fault.message)
            except TROUBLE:
                # One session's trouble must not end the others; what was decided stays decided.
                log.exception("commit failed", session_id=self._session_id)
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _refused(self) -> None:
        """The shard is another manager's; if this was closed meanwhile, that is known."""
        if not self._closed:
            self.close()
            self._lost(self._session_id, self._epoch)

    def _release(self, batch: Sequence[Command]) -> None:
        for command in batch:
            if isinstance(command, Cancel):
                self._cancel(command)
            elif isinstance(command, Effect):
                self._effects.append(command)
        if self._effects and not self._performing:
            self._performing = True
            self._tasks.spawn(self._perform_all(), f"effects {self._session_id}")

    async def _perform_all(self) -> None:
        while self._effects:
            await self._allowed()
            if self._effects:
                await self._perform(self._effects.popleft())
        self._performing = False
        self._notify()

    def _notify(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def merge(changes: Sequence[Changes]) -> Changes:
    """Consecutive changes of a session as one: the newest snapshot of each thing."""
    if len(changes) == 1:
        return changes[0]
    sessions = [change.session for change in changes if change.session is not None]
    return Changes(
        sessions[-1] if sessions else None,
        tuple({call.id: call for change in changes for call in change.calls}.values()),
        tuple({variable.id: variable for change in changes for variable in change.variables}.values()),
        tuple({attempt.ref: attempt for change in changes for attempt in change.attempts}.values()),
        tuple(value for change in changes for value in change.values),
        tuple(call for change in changes for call in change.new_calls),
        tuple(variable for change in changes for variable in change.new_variables),
        tuple({block.id: block for change in changes for block in change.blocks}.values()),
    )
