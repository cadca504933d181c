"""What clients write: as `parrot_manager.intake`. Nothing is answered before it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from parrot_manager.core import admission, claims, events, native_events
from parrot_manager.core.commands import Changes
from parrot_manager.core.model import Batch, Failure, Session, SessionState, Value
from parrot_manager.core.state import LiveSession
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from tests.simulation.apps import PlannedApp, PlannedBatch
from tests.simulation.kernel import NEVER_MS, Answer, Signal, sleep
from tests.simulation.reader import TENANT

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager

REVOKE_AGAIN_MS = 1_000
NOT_STORED = {errors.QUOTA_EXCEEDED, errors.TOO_LARGE}
LOCK_MS = 5_000


class Intake:
    """Takes in sessions, batches, wishes and ends."""

    def __init__(self, manager: SimManager) -> None:
        self._manager = manager

    async def open_session(self, app: PlannedApp) -> None:
        """A new session, or the one that was opened with the same key.

        Raises:
            Fault: `wrong_manager`, `unavailable`.
        """
        manager = self._manager
        async with self._writing(app.session_id) as epoch:
            if app.session_id in manager.machine.state.sessions:
                return
            event = self._opening(app)
            await manager.store.insert_session(event.session, epoch)
            self._apply(app.session_id, epoch, event)

    async def submit(self, app: PlannedApp, batch: PlannedBatch, digest: bytes) -> list[str]:
        """The ids of a batch of calls, stored now or before, under its key.

        Raises:
            Fault: what `admit_calls` raises, `wrong_manager`, `unavailable`.
        """
        await self._check_open(app.session_id)
        answer: Answer[list[str]] = Answer()
        self._manager.process.spawn(self._store, app.session_id, batch, digest, answer)
        return await answer.get(NEVER_MS, Fault(errors.UNAVAILABLE, "never"))

    async def open_with_calls(self, app: PlannedApp, batch: PlannedBatch, digest: bytes) -> list[str]:
        """As `submit`, of a session that is opened with the batch unless it was opened before.

        Raises:
            Fault: as `submit`.
        """
        self._manager.shards.check(app.session_id)
        answer: Answer[list[str]] = Answer()
        self._manager.process.spawn(self._open_and_store, app, batch, digest, answer)
        return await answer.get(NEVER_MS, Fault(errors.UNAVAILABLE, "never"))

    async def want(self, app: PlannedApp, variable_id: str) -> None:
        """Somebody reads a variable: what leads to it runs, when the session is lazy.

        Raises:
            Fault: `session_ended`, `wrong_manager`, `unavailable`.
        """
        await self._check_open(app.session_id)
        wanted = (events.Wanted(variable_id),)
        self._manager.apply(events.VariablesWanted(app.session_id, wanted))
        await self._manager.outbox(app.session_id).settled(LOCK_MS)

    async def cancel(self, app: PlannedApp, variable_id: str, *, subtree: bool) -> None:
        """Cancels the call that makes a variable, and what depends on it.

        Raises:
            Fault: `not_found`, `wrong_manager`, `unavailable`.
        """
        state = self._manager.machine.state
        await self._check_open(app.session_id)
        variable = state.sessions[app.session_id].variables.get(variable_id)
        made_by = (variable.producer_call_id or variable.producer_block_id) if variable is not None else ""
        call_ids = [made_by or "c-0"]
        event = admission.admit_cancel(state, TENANT, app.session_id, call_ids, subtree=subtree)
        self._manager.apply(event)
        await self._manager.outbox(app.session_id).settled(LOCK_MS)

    async def close(self, app: PlannedApp) -> None:
        """Ends a session; what had not finished is cancelled.

        Raises:
            Fault: `not_found`, `wrong_manager`, `unavailable`.
        """
        manager, session_id = self._manager, app.session_id
        await self._check_open(session_id)
        async with self._writing(session_id) as epoch:
            event = admission.admit_close(manager.machine.state, TENANT, session_id)
            if event is not None:
                live = manager.machine.state.sessions[session_id]
                closing = replace(live.session, state=SessionState.CLOSING)
                await manager.store.commit(session_id, Changes(session=closing), epoch)
                self._apply(session_id, epoch, event)
            await manager.outbox(session_id).settled(LOCK_MS)

    async def delete(self, app: PlannedApp) -> None:
        """Ends a session, and deletes it with all it holds.

        Raises:
            Fault: `session_ended`, `not_found`, `wrong_manager`, `unavailable`.
        """
        manager, session_id = self._manager, app.session_id
        await self.close(app)
        async with self._writing(session_id) as epoch:
            await manager.outbox(session_id).quiet(LOCK_MS)
            await manager.tellings.quiet(session_id, LOCK_MS)
            await manager.states.purge(session_id)
            await manager.store.delete_session(session_id, epoch)
            forget = events.Timer(events.TimerKind.FORGET, session_id)
            self._apply(session_id, epoch, events.TimerFired(forget))

    async def natives(self, session_id: str) -> list[tuple[str, tuple[str, ...]]]:
        """The calls of a session that workers may run, each with its outputs, as anybody may look.

        Raises:
            Fault: `session_ended`, `not_found`, `wrong_manager`, `unavailable`.
        """
        await self._check_open(session_id)
        live = self._manager.machine.state.sessions[session_id]
        calls = [live.calls[name] for name in live.unfinished]
        return [(call.id, call.output_ids) for call in calls if call.by_client]

    async def claim(self, session_id: str, call_id: str, worker: str) -> list[str] | None:
        """The inputs of a call that is the worker's from now on; None: it waits for them.

        Raises:
            Fault: `claim_lost`, and as `natives`.
        """
        live = await self._live(session_id)
        if not claims.admit_claim(live, live.calls[call_id], worker):
            return None
        self._manager.apply(native_events.CallClaimed(session_id, call_id, worker))
        await self._manager.outbox(session_id).settled(LOCK_MS)
        call = (await self._live(session_id)).calls[call_id]
        values = await self._manager.store.read_values(session_id, list(call.input_ids))
        return [values[edge.variable_id].decode() for edge in call.inputs]

    async def renew(self, session_id: str, call_id: str, worker: str) -> None:
        """The call stays the worker's for another lease.

        Raises:
            Fault: `claim_lost`, and as `natives`.
        """
        live = await self._live(session_id)
        claims.admit_renewal(live, live.calls[call_id], worker)
        self._manager.apply(native_events.ClaimRenewed(session_id, call_id, worker))

    async def complete(
        self,
        session_id: str,
        call_id: str,
        worker: str,
        outputs: list[str],
        fails: str,
        *,
        unclaimed: bool = False,
    ) -> bool:
        """What a call came to; False: without a claim, and it waits for its inputs.

        Raises:
            Fault: `claim_lost`, and as `natives`.
        """
        live = await self._live(session_id)
        call = live.calls[call_id]
        if not claims.has_result(call, worker):
            if unclaimed and not claims.admit_claim(live, call, worker):
                return False
            claims.admit_result(live, call, worker, unclaimed=unclaimed)
            if fails:
                failure = Failure(fails, "it broke")
                self._manager.apply(
                    native_events.NativeFailed(session_id, call_id, worker, failure, unclaimed)
                )
            else:
                texts = zip(call.output_ids, outputs, strict=True)
                values = tuple(Value(name, text.encode()) for name, text in texts)
                self._manager.apply(native_events.NativeDone(session_id, call_id, worker, values, unclaimed))
        await self._manager.outbox(session_id).settled(LOCK_MS)
        return True

    async def _live(self, session_id: str) -> LiveSession:
        await self._check_open(session_id)
        return self._manager.machine.state.sessions[session_id]

    async def _check_open(self, session_id: str) -> None:
        manager = self._manager
        manager.shards.check(session_id)
        if session_id not in manager.machine.state.sessions:
            record = await manager.store.load_session(session_id)
            if record is None:
                raise admission.session_not_found(session_id)
            raise admission.session_ended(session_id, record.session.state)

    async def _store(
        self, session_id: str, batch: PlannedBatch, digest: bytes, answer: Answer[list[str]]
    ) -> None:
        try:
            async with self._writing(session_id) as epoch:
                await self._store_batch(session_id, epoch, batch, digest, answer)
        except Fault as fault:
            answer.refuse(fault)

    async def _store_batch(
        self, session_id: str, epoch: int, batch: PlannedBatch, digest: bytes, answer: Answer[list[str]]
    ) -> None:
        event = self._admit(session_id, batch, digest)
        if isinstance(event, Batch):
            answer.give(list(event.call_ids))
            return
        try:
            await self._manager.store.insert_calls(event, epoch)
        except Fault as fault:
            answer.refuse(fault)
            if fault.kind not in NOT_STORED:
                await self._revoke(event, epoch)
            return
        self._take_in(session_id, epoch, event, answer)

    def _take_in(
        self, session_id: str, epoch: int, event: events.CallsAccepted, answer: Answer[list[str]]
    ) -> None:
        self._manager.shards.check(session_id, epoch)
        self._manager.tellings.accepted(event)
        self._apply(session_id, epoch, event)
        answer.give([*(call.id for call in event.calls), *(block.id for block in event.blocks)])

    async def _open_and_store(
        self, app: PlannedApp, batch: PlannedBatch, digest: bytes, answer: Answer[list[str]]
    ) -> None:
        session_id, state = app.session_id, self._manager.machine.state
        try:
            async with self._writing(session_id) as epoch:
                if session_id not in state.sessions and await self._opened(app, epoch, batch, digest, answer):
                    return
                # It was there, in memory or in the store alone.
                if session_id not in state.sessions:
                    await self._find_out(session_id, epoch)
                await self._check_open(session_id)
                await self._store_batch(session_id, epoch, batch, digest, answer)
        except Fault as fault:
            answer.refuse(fault)

    async def _opened(
        self, app: PlannedApp, epoch: int, batch: PlannedBatch, digest: bytes, answer: Answer[list[str]]
    ) -> bool:
        """Whether it was answered; False: the store has the session already."""
        opening, session_id = self._opening(app), app.session_id
        try:
            event = self._admit(session_id, batch, digest, opening.session)
        except Fault:
            if await self._manager.store.load_session(session_id) is None:
                raise
            return False
        assert isinstance(event, events.CallsAccepted)
        try:
            new = await self._manager.store.insert_session_with_calls(opening.session, event, epoch)
        except Fault as fault:
            answer.refuse(fault)
            if fault.kind not in NOT_STORED and await self._is_there(session_id, epoch):
                await self._revoke(event, epoch)
                await self._find_out(session_id, epoch)
            return True
        if new:
            self._apply(session_id, epoch, opening)
            self._take_in(session_id, epoch, event, answer)
        return new

    async def _is_there(self, session_id: str, epoch: int) -> bool:
        """Whether a session that is not in memory is in the store, and has not ended: it was just added."""
        while self._manager.shards.holds(shard_of(session_id), epoch):
            try:
                record = await self._manager.store.load_session(session_id)
            except Fault:
                await sleep(REVOKE_AGAIN_MS)
            else:
                return record is not None and not record.session.state.ended
        return False

    async def _find_out(self, session_id: str, epoch: int) -> None:
        """A session may be in the store alone: then it lives."""
        while self._manager.shards.holds(shard_of(session_id), epoch):
            try:
                record = await self._manager.store.load_session(session_id)
            except Fault:
                await sleep(REVOKE_AGAIN_MS)
                continue
            if record is not None and not record.session.state.ended:
                self._apply(session_id, epoch, events.SessionOpened(record.session))
            return

    def _opening(self, app: PlannedApp) -> events.SessionOpened:
        return admission.admit_session(
            self._manager.policy,
            self._manager.clock.now_ms,
            session_id=app.session_id,
            tenant=TENANT,
            label="",
            timeout_ms=app.timeout_ms,
            criteria=app.criteria,
            lazy=app.lazy,
            ends_with_calls=app.ends_with_calls,
            key=app.session_id,
            digest=b"session",
        )

    def _admit(
        self, session_id: str, batch: PlannedBatch, digest: bytes, opening: Session | None = None
    ) -> events.CallsAccepted | Batch:
        state = self._manager.machine.state
        live = state.sessions.get(session_id)
        before = admission.find_batch(live.batches, batch.key, digest) if live is not None else None
        if before is not None:
            return before
        return admission.admit_calls(
            state,
            TENANT,
            session_id,
            batch.calls(),
            batch.given(),
            blocks=batch.blocks(),
            now_ms=self._manager.clock.now_ms,
            key=batch.key,
            digest=digest,
            opening=opening,
        )

    async def _revoke(self, event: events.CallsAccepted, epoch: int) -> None:
        """A batch was refused that may have been stored after all: takes it back before anything else."""
        while self._manager.shards.holds(shard_of(event.session_id), epoch):
            try:
                await self._manager.store.remove_calls(event, epoch)
            except Fault:
                await sleep(REVOKE_AGAIN_MS)
            else:
                return

    @asynccontextmanager
    async def _writing(self, session_id: str) -> AsyncIterator[int]:
        """Client writes to a session come one after another; gives the epoch they are written under."""
        writing, until_ms = self._manager.writing, self._manager.clock.now_ms + LOCK_MS
        while session_id in writing:
            left_ms = until_ms - self._manager.clock.now_ms
            if left_ms <= 0 or not await writing[session_id].wait(left_ms):
                raise Fault(errors.UNAVAILABLE, "the session's last write is not settled")
        mine = writing[session_id] = Signal()
        try:
            yield self._manager.shards.epoch_of(session_id)
        finally:
            del writing[session_id]
            mine.notify()

    def _apply(self, session_id: str, epoch: int, event: events.Event) -> None:
        """Tells the machine what the store has, if the session is still this manager's.

        Raises:
            Fault: `wrong_manager`.
        """
        if not self._manager.shards.holds(shard_of(session_id), epoch):
            raise Fault(errors.WRONG_MANAGER, "another manager serves this session")
        self._manager.apply(event)
