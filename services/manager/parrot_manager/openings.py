"""Sessions are opened: empty, or with their first batch in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from parrot_manager import clock
from parrot_manager.core import admission
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.criteria import Criteria
from parrot_manager.core.events import CallsAccepted, SessionOpened, Wanted
from parrot_manager.core.model import Batch, Session
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_manager.intake import NOT_STORED, REVOKE_AGAIN_S, Find, Intake, ids_of
from parrot_manager.native_requests import check_allowed
from parrot_manager.shell import Shell
from parrot_manager.tasks import Answer
from parrot_runtime import ids, telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of

log = structlog.get_logger()

Admit = Callable[[Session | None], CallsAccepted]
"""The batch of a session that is to be opened, or of the one that is there."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be opened, and what it begins with."""

    opening: SessionOpened
    admit: Admit
    find: Find

    @property
    def session(self) -> Session:
        return self.opening.session


@dataclass(frozen=True, slots=True)
class _Opened:
    session: Session
    accepted: CallsAccepted | Batch


class Openings:
    """Opens sessions. A client that goes away meanwhile changes nothing."""

    def __init__(self, shell: Shell, intake: Intake) -> None:
        self._shell = shell
        self._intake = intake

    def opening(
        self,
        tenant: str,
        label: str,
        timeout_ms: int,
        *,
        criteria: Criteria | None = None,
        lazy: bool = False,
        ends_with_calls: bool = False,
        key: str = "",
        digest: bytes = b"",
    ) -> SessionOpened:
        """A session as it would be opened now; under a key its id is always the same.

        Raises:
            Fault: `invalid_request`; `wrong_manager`.
        """
        # Under a key both tries come to the same session, and so to the same manager.
        session_id = (
            ids.session_id_of(tenant, key)
            if key
            else ids.new_session_id(self._shell.shards.served_or_refused())
        )
        return admission.admit_session(
            self._shell.machine.policy,
            clock.now_ms(),
            session_id=session_id,
            tenant=tenant,
            label=label,
            timeout_ms=timeout_ms,
            trace=telemetry.inject().items(),
            criteria=criteria,
            lazy=lazy,
            ends_with_calls=ends_with_calls,
            key=key,
            digest=digest,
        )

    async def open(self, opening: SessionOpened) -> Session:
        """A new session, stored; or the one that was opened under the same idempotency key.

        Raises:
            Fault: `idempotency_conflict`, `quota_exceeded`, `wrong_manager`, `unavailable`.
        """
        self._intake.check_serving()

        def work(answer: Answer[Session]) -> Coroutine[Any, Any, None]:
            return self._open(opening, answer)

        return await self._shell.tasks.answered(work, "open session")

    async def submit(
        self,
        opening: SessionOpened,
        calls: Sequence[NewCall],
        values: Sequence[NewValue],
        blocks: Sequence[NewBlock] = (),
        *,
        wanted: Sequence[Wanted] = (),
        key: str = "",
        digest: bytes = b"",
    ) -> tuple[Session, list[str]]:
        """A session, and the ids of a batch of calls and blocks in it, all stored; each now, or before.

        Args:
            opening: of a session with a key. If that has opened it before, the batch joins it.
            key, digest: the batch's.

        Raises:
            Fault: what `open` and `Intake.submit` raise.
        """
        self._intake.check_serving()
        check_allowed(calls, blocks, sandbox=self._shell.settings.sandbox)
        state, now_ms = self._shell.machine.state, clock.now_ms()
        session = opening.session
        asked = _Asked(
            opening,
            lambda opened: admission.admit_calls(
                state,
                session.tenant,
                session.id,
                calls,
                values,
                now_ms=now_ms,
                blocks=blocks,
                wanted=wanted,
                key=key,
                digest=digest,
                opening=opened,
            ),
            lambda batches: admission.find_batch(batches, key, digest),
        )

        def work(answer: Answer[_Opened]) -> Coroutine[Any, Any, None]:
            return self._submit(asked, answer)

        opened = await self._shell.tasks.answered(work, f"open {session.id} with calls")
        return opened.session, ids_of(opened.accepted)

    async def _open(self, event: SessionOpened, answer: Answer[Session]) -> None:
        session = event.session
        async with self._intake.writing(session.id) as epoch:
            known = await self._opened_before(session)
            if known is None:
                try:
                    await self._shell.store.insert_session(session, epoch)
                except Fault as fault:
                    answer.refuse(fault)
                    if fault.kind not in NOT_STORED:
                        await self._find_out(session, epoch)
                    return
                self._shell.shards.check(session.id, epoch)
                self._shell.apply(event)
            answer.give(known or session)

    async def _find_out(self, session: Session, epoch: int) -> None:
        """A session was refused that may have been stored after all: then it lives until its deadline."""
        while self._shell.shards.holds(shard_of(session.id), epoch):
            try:
                record = await self._shell.store.load_session(session.tenant, session.id)
            except Fault as fault:
                log.warning("session not looked for yet", session_id=session.id, reason=fault.message)
                await asyncio.sleep(REVOKE_AGAIN_S)
            else:
                if record is not None and self._shell.shards.holds(shard_of(session.id), epoch):
                    self._shell.apply(SessionOpened(record.session))
                return

    async def _opened_before(self, session: Session) -> Session | None:
        """The session that was opened under the same key, in memory or long ended; None: there is none.

        Raises:
            Fault: `idempotency_conflict`: another request opened it, or the id that follows from the key is
                another tenant's session.
        """
        if not session.idempotency_key:
            return None
        live = admission.find_session(self._shell.machine.state, session.tenant, session.id)
        known = live.session if live is not None else await self._shell.store.read_session(session.id)
        if known is None:
            return None
        if known.tenant != session.tenant:
            raise admission.conflict(session.idempotency_key, "session")
        if live is None and not known.state.ended:
            # It was stored after all when whoever opened it was told that it could not be.
            self._shell.apply(SessionOpened(known))
        admission.check_repeated(known, session.body_digest)
        return known

    async def _submit(self, asked: _Asked, answer: Answer[_Opened]) -> None:
        async with self._intake.writing(asked.session.id) as epoch:
            if self._find(asked.session) is None:
                event = await self._admitted(asked)
                if event is not None and await self._stored(asked, event, epoch, answer):
                    return
            session = await self._opened_before(asked.session)
            if session is None:
                raise admission.session_not_found(asked.session.id)
            accepted = await self._joined(asked, epoch, answer)
            if accepted is not None:
                answer.give(_Opened(session, accepted))

    def _find(self, session: Session) -> object | None:
        return admission.find_session(self._shell.machine.state, session.tenant, session.id)

    async def _admitted(self, asked: _Asked) -> CallsAccepted | None:
        """The batch as the session's first; None: the session was there, and it is judged there."""
        try:
            return asked.admit(asked.session)
        except Fault:
            if await self._opened_before(asked.session) is None:
                raise
            return None

    async def _stored(self, asked: _Asked, event: CallsAccepted, epoch: int, answer: Answer[_Opened]) -> bool:
        """Whether it was answered; False: the store has the session already."""
        session = asked.session
        try:
            new = await self._shell.store.insert_session_with_calls(session, event, epoch)
        except Fault as fault:
            answer.refuse(fault)
            if fault.kind not in NOT_STORED:
                await self._undo(session, event, epoch)
            return True
        if new:
            self._shell.shards.check(session.id, epoch)
            self._shell.apply(asked.opening)
            self._intake.take_in(session.tenant, event)
            answer.give(_Opened(session, event))
        return new

    async def _undo(self, session: Session, event: CallsAccepted, epoch: int) -> None:
        """A session was refused that may have been stored with its batch: then it stays, without it."""
        holds = partial(self._shell.shards.holds, shard_of(session.id), epoch)
        while holds():
            try:
                known = await self._shell.store.read_session(session.id)
            except Fault as fault:
                log.warning("session not looked for yet", session_id=session.id, reason=fault.message)
                await asyncio.sleep(REVOKE_AGAIN_S)
            else:
                break
        else:
            return
        # What is in memory or has ended was there before, and so is what it holds.
        if known is None or known.state.ended or session.id in self._shell.machine.state.sessions:
            return
        await self._intake.revoke(event, epoch)
        if holds():
            self._shell.apply(SessionOpened(known))

    async def _joined(
        self, asked: _Asked, epoch: int, answer: Answer[_Opened]
    ) -> CallsAccepted | Batch | None:
        """The batch, of the session that is there; None: it was refused."""
        tenant, session_id = asked.session.tenant, asked.session.id
        if self._find(asked.session) is None:
            return await self._intake.find_ended(tenant, session_id, asked.find)
        return await self._intake.store_batch(
            tenant, session_id, epoch, lambda: asked.admit(None), asked.find, refuse=answer.refuse
        )
