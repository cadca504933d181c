"""What clients write. Nothing is answered before it is stored; nothing is stored before it is checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from parrot_manager import clock
from parrot_manager.core import admission
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.commands import Changes
from parrot_manager.core.criteria import Criteria, stricter
from parrot_manager.core.events import CallsAccepted, VariablesWanted, Wanted
from parrot_manager.core.model import Batch, Session, Variable
from parrot_manager.core.sessions import closing
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_manager.native_requests import check_allowed
from parrot_manager.shell import Shell
from parrot_manager.store.base import SessionRecord
from parrot_manager.tasks import Answer
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of

REVOKE_AGAIN_S: Final = 1.0
NOT_STORED: Final = frozenset({errors.QUOTA_EXCEEDED, errors.TOO_LARGE})
"""What is refused for its tenant's quota is not there, that is known."""

Find = Callable[[Mapping[str, Batch]], Batch | None]
"""Of a session's batches the one that is sent again."""

log = structlog.get_logger()


class Intake:
    """Takes in calls and values, and ends sessions. A client that goes away meanwhile changes nothing."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def submit(
        self,
        tenant: str,
        session_id: str,
        calls: Sequence[NewCall],
        values: Sequence[NewValue],
        blocks: Sequence[NewBlock] = (),
        *,
        wanted: Sequence[Wanted] = (),
        key: str = "",
        digest: bytes = b"",
    ) -> list[str]:
        """The ids of a batch of calls and blocks, all of them stored; now, or before under the same key.

        Raises:
            Fault: what `admit_calls` and `find_batch` raise, `quota_exceeded`, `unavailable`.
        """
        check_allowed(calls, blocks, sandbox=self._shell.settings.sandbox)
        now_ms = clock.now_ms()
        state = self._shell.machine.state
        accepted = await self._accept(
            tenant,
            session_id,
            lambda: admission.admit_calls(
                state,
                tenant,
                session_id,
                calls,
                values,
                now_ms=now_ms,
                blocks=blocks,
                wanted=wanted,
                key=key,
                digest=digest,
            ),
            lambda batches: admission.find_batch(batches, key, digest),
        )
        return ids_of(accepted)

    def want(self, tenant: str, session_id: str, variable_id: str, criteria: Criteria | None) -> None:
        """A variable is read: what makes it hastens, or begins if nobody asked for it before."""
        live = admission.find_session(self._shell.machine.state, tenant, session_id)
        variable = live.variables.get(variable_id) if live is not None else None
        if live is None or variable is None or variable.state.ended:
            return
        wish = stricter(variable.criteria, criteria)
        if wish != variable.criteria or (wish is None and live.session.lazy):
            self._shell.apply(VariablesWanted(session_id, (Wanted(variable_id, criteria),)))

    async def cancel(
        self, tenant: str, session_id: str, call_ids: Sequence[str], *, subtree: bool
    ) -> list[str]:
        """Cancels calls and what depends on them; those that were cancelled now, stored.

        Raises:
            Fault: `not_found`, `session_ended`, `unavailable`.
        """

        async def work(answer: Answer[list[str]]) -> None:
            async with self.writing(session_id):
                state = self._shell.machine.state
                event = admission.admit_cancel(state, tenant, session_id, call_ids, subtree=subtree)
                live = state.sessions[session_id]
                before = list(live.unfinished)
                self._shell.apply(event)
                ended = [name for name in before if name not in live.unfinished]
                await self._shell.settled(session_id)
                answer.give(sorted(ended, key=lambda name: live.calls[name].number))

        await self._check_open(tenant, session_id)
        return await self._shell.tasks.answered(work, f"cancel in {session_id}")

    async def set_value(self, tenant: str, session_id: str, value: NewValue) -> Variable:
        """The variable a client gave its value, stored.

        Raises:
            Fault: what `admit_value` raises, `quota_exceeded`, `unavailable`.
        """
        now_ms = clock.now_ms()
        accepted = await self._accept(
            tenant,
            session_id,
            lambda: admission.admit_value(self._shell.machine.state, tenant, session_id, value, now_ms),
            lambda _: None,
        )
        if isinstance(accepted, Batch):
            raise TypeError("a value has no batch")
        return accepted.variables[0]

    async def close(self, tenant: str, session_id: str) -> Session:
        """A session that has ended; what had not finished is cancelled, and all that is stored.

        Raises:
            Fault: `not_found`, `unavailable`.
        """

        async def work(answer: Answer[Session]) -> None:
            async with self.writing(session_id) as epoch:
                answer.give(await self.close_now(tenant, session_id, epoch))

        if admission.find_session(self._shell.machine.state, tenant, session_id) is None:
            return (await self.ended(tenant, session_id)).session
        return await self._shell.tasks.answered(work, f"close {session_id}")

    async def close_now(self, tenant: str, session_id: str, epoch: int) -> Session:
        """As `close`, of a session in memory, for one who is `writing` to it.

        Raises:
            Fault: `not_found`, `unavailable`.
        """
        times = {"settled_ms": self._shell.noted.settled_ms(session_id), "asked_ms": clock.precise_ms()}
        event = admission.admit_close(self._shell.machine.state, tenant, session_id, **times)
        live = self._shell.machine.state.sessions[session_id]
        if event is not None:
            wish = Changes(session=closing(live.session, event))
            await self._shell.store.commit(session_id, wish, epoch)
            self._shell.shards.check(session_id, epoch)
            self._shell.apply(event)
        await self._shell.settled(session_id)
        return live.session

    async def _accept(
        self,
        tenant: str,
        session_id: str,
        admit: Callable[[], CallsAccepted],
        find: Find,
    ) -> CallsAccepted | Batch:
        self.check_serving()
        if admission.find_session(self._shell.machine.state, tenant, session_id) is None:
            return await self.find_ended(tenant, session_id, find)

        def work(answer: Answer[CallsAccepted | Batch]) -> Coroutine[Any, Any, None]:
            return self._store(tenant, session_id, admit, find, answer)

        return await self._shell.tasks.answered(work, f"accept {session_id}")

    async def _check_open(self, tenant: str, session_id: str) -> None:
        """Refuses what is meant for a session that is not in memory, for the right reason."""
        if admission.find_session(self._shell.machine.state, tenant, session_id) is None:
            ended = await self.ended(tenant, session_id)
            raise admission.session_ended(session_id, ended.session.state)

    async def _store(
        self,
        tenant: str,
        session_id: str,
        admit: Callable[[], CallsAccepted],
        find: Find,
        answer: Answer[CallsAccepted | Batch],
    ) -> None:
        async with self.writing(session_id) as epoch:
            accepted = await self.store_batch(tenant, session_id, epoch, admit, find, refuse=answer.refuse)
            if accepted is not None:
                answer.give(accepted)

    async def store_batch(
        self,
        tenant: str,
        session_id: str,
        epoch: int,
        admit: Callable[[], CallsAccepted],
        find: Find,
        *,
        refuse: Callable[[Fault], None],
    ) -> CallsAccepted | Batch | None:
        """A batch of a session in memory, stored, for one who is `writing` to it; now, or before.

        None: `refuse` was told why it is not stored.

        Raises:
            Fault: what `admit` and `find` raise; `wrong_manager`.
        """
        live = self._shell.machine.state.sessions.get(session_id)
        known = find(live.batches) if live is not None else None
        if known is not None:
            return known
        event = self._shell.noted.marked(admit())
        try:
            await self._shell.store.insert_calls(event, epoch)
        except Fault as fault:
            refuse(fault)
            if fault.kind not in NOT_STORED:
                await self.revoke(event, epoch)
            return None
        self._shell.shards.check(session_id, epoch)
        self.take_in(tenant, event)
        return event

    def take_in(self, tenant: str, event: CallsAccepted) -> None:
        """A batch is stored."""
        self._shell.spans.accepted(event.calls)
        self._shell.tellings.accepted(tenant, event)
        self._shell.apply(event)

    async def find_ended(self, tenant: str, session_id: str, find: Find) -> Batch:
        """The batch that is sent again, of a session that is not in memory.

        Raises:
            Fault: `session_ended`, when it is none of its batches; `not_found`; what `find` raises.
        """
        ended = await self.ended(tenant, session_id)
        known = find({batch.key: batch for batch in ended.batches})
        if known is None:
            raise admission.session_ended(session_id, ended.session.state)
        return known

    async def revoke(self, event: CallsAccepted, epoch: int) -> None:
        """A batch was refused that may have been stored after all: takes it back before anything else.

        Where the session is another manager's by now, that one has decided whether it was stored.
        """
        while self._shell.shards.holds(shard_of(event.session_id), epoch):
            try:
                await self._shell.store.remove_calls(event, epoch)
            except Fault as fault:
                log.warning("batch not revoked yet", session_id=event.session_id, reason=fault.message)
                await asyncio.sleep(REVOKE_AGAIN_S)
            else:
                return

    async def ended(self, tenant: str, session_id: str) -> SessionRecord:
        """A session that is not in memory, as the store has it."""
        self._shell.shards.check(session_id)
        record = await self._shell.store.load_session(tenant, session_id)
        if record is None:
            raise admission.session_not_found(session_id)
        return record

    @asynccontextmanager
    async def writing(self, session_id: str) -> AsyncIterator[int]:
        """Client writes to a session come one after another: each is checked against all before it.

        Gives the epoch under which they are written.
        """
        self._shell.shards.check(session_id)
        lock = self._shell.locks.get(session_id)
        if lock is None:
            lock = self._shell.locks[session_id] = asyncio.Lock()
        try:
            await asyncio.wait_for(lock.acquire(), self._shell.settings.store_deadline_s)
        except TimeoutError:
            raise Fault(
                errors.UNAVAILABLE,
                "the session's last write is not settled; try again",
                session_id=session_id,
                retry_after_ms=1000,
            ) from None
        try:
            yield self._shell.shards.epoch_of(session_id)
        finally:
            lock.release()

    def check_serving(self) -> None:
        """Refuses everything new once the manager is about to stop.

        Raises:
            Fault: `unavailable`.
        """
        if self._shell.draining:
            raise Fault(errors.UNAVAILABLE, "the manager is stopping; try again", retry_after_ms=2000)


def ids_of(accepted: CallsAccepted | Batch) -> list[str]:
    """The ids of a batch's calls and blocks, in this order."""
    if isinstance(accepted, Batch):
        return list(accepted.call_ids)
    return [call.id for call in accepted.calls] + [block.id for block in accepted.blocks]
