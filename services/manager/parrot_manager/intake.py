"""What clients write. Nothing is answered before it is stored; nothing is stored before it is checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import structlog

from parrot_manager import clock
from parrot_manager.core import admission
from parrot_manager.core.admission import NewCall, NewValue
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, SessionState, Variable
from parrot_manager.shell import Shell
from parrot_manager.tasks import Answer
from parrot_runtime import errors, ids, telemetry
from parrot_runtime.errors import Fault

REVOKE_AGAIN_S: Final = 1.0

log = structlog.get_logger()


class Intake:
    """Takes in sessions, calls and values. A client that goes away meanwhile changes nothing."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def open_session(self, tenant: str, label: str, timeout_ms: int) -> Session:
        """A new session, stored.

        Raises:
            Fault: `invalid_request`, `unavailable`.
        """
        self._check_serving()
        event = admission.admit_session(
            self._shell.machine.policy,
            clock.now_ms(),
            session_id=ids.new_session_id(),
            tenant=tenant,
            label=label,
            timeout_ms=timeout_ms,
            trace=telemetry.inject().items(),
        )

        async def work(answer: Answer[Session]) -> None:
            await self._shell.store.insert_session(event.session)
            self._shell.apply(event)
            answer.give(event.session)

        return await self._shell.tasks.answered(work, "open session")

    async def submit(
        self, tenant: str, session_id: str, calls: Sequence[NewCall], values: Sequence[NewValue]
    ) -> list[str]:
        """The ids of a batch of calls, all of them stored.

        Raises:
            Fault: what `admit_calls` raises, and `unavailable`.
        """
        now_ms = clock.now_ms()
        accepted = await self._accept(
            tenant,
            session_id,
            lambda: admission.admit_calls(
                self._shell.machine.state, tenant, session_id, calls, values, now_ms=now_ms
            ),
        )
        return [call.id for call in accepted.calls]

    async def set_value(self, tenant: str, session_id: str, value: NewValue) -> Variable:
        """The variable a client gave its value, stored.

        Raises:
            Fault: what `admit_value` raises, and `unavailable`.
        """
        now_ms = clock.now_ms()
        accepted = await self._accept(
            tenant,
            session_id,
            lambda: admission.admit_value(self._shell.machine.state, tenant, session_id, value, now_ms),
        )
        return accepted.variables[0]

    async def close(self, tenant: str, session_id: str) -> Session:
        """A session that has ended; what had not finished is cancelled, and all that is stored.

        Raises:
            Fault: `not_found`, `unavailable`.
        """

        async def work(answer: Answer[Session]) -> None:
            async with self._writing(session_id):
                event = admission.admit_close(self._shell.machine.state, tenant, session_id)
                live = self._shell.machine.state.sessions[session_id]
                if event is not None:
                    closing = replace(live.session, state=SessionState.CLOSING)
                    await self._shell.store.commit(session_id, Changes(session=closing))
                    self._shell.apply(event)
                await self._shell.settled(session_id)
                answer.give(live.session)

        if admission.find_session(self._shell.machine.state, tenant, session_id) is None:
            return await self._ended(tenant, session_id)
        return await self._shell.tasks.answered(work, f"close {session_id}")

    async def _accept(
        self, tenant: str, session_id: str, admit: Callable[[], CallsAccepted]
    ) -> CallsAccepted:
        self._check_serving()
        if admission.find_session(self._shell.machine.state, tenant, session_id) is None:
            session = await self._ended(tenant, session_id)
            raise admission.session_ended(session_id, session.state)

        def work(answer: Answer[CallsAccepted]) -> Coroutine[Any, Any, None]:
            return self._store(session_id, admit, answer)

        return await self._shell.tasks.answered(work, f"accept {session_id}")

    async def _store(
        self, session_id: str, admit: Callable[[], CallsAccepted], answer: Answer[CallsAccepted]
    ) -> None:
        async with self._writing(session_id):
            event = admit()
            try:
                await self._shell.store.insert_calls(session_id, event.calls, event.variables, event.values)
            except Fault as fault:
                answer.refuse(fault)
                await self._revoke(event)
                return
            self._shell.spans.accepted(event.calls)
            self._shell.apply(event)
            answer.give(event)

    async def _revoke(self, event: CallsAccepted) -> None:
        """A batch was refused that may have been stored after all: takes it back before anything else."""
        while True:
            try:
                await self._shell.store.remove_calls(event.session_id, event.calls, event.variables)
            except Fault as fault:
                log.warning("batch not revoked yet", session_id=event.session_id, reason=fault.message)
                await asyncio.sleep(REVOKE_AGAIN_S)
            else:
                return

    async def _ended(self, tenant: str, session_id: str) -> Session:
        record = await self._shell.store.load_session(tenant, session_id)
        if record is None:
            raise admission.session_not_found(session_id)
        return record.session

    @asynccontextmanager
    async def _writing(self, session_id: str) -> AsyncIterator[None]:
        """Client writes to a session come one after another: each is checked against all before it."""
        lock = self._shell.locks.setdefault(session_id, asyncio.Lock())
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
            yield
        finally:
            lock.release()

    def _check_serving(self) -> None:
        if self._shell.draining:
            raise Fault(errors.UNAVAILABLE, "the manager is stopping; try again", retry_after_ms=2000)
