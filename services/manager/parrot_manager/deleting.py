"""Deletes sessions at their client's word, with all they hold."""

from __future__ import annotations

from parrot_manager.core.admission import find_session
from parrot_manager.core.events import Timer, TimerFired, TimerKind
from parrot_manager.intake import Intake
from parrot_manager.shell import Shell
from parrot_manager.tasks import Answer
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import TROUBLE


class Deleting:
    """Ends sessions and deletes them."""

    def __init__(self, shell: Shell, intake: Intake) -> None:
        self._shell = shell
        self._intake = intake

    async def delete(self, tenant: str, session_id: str, *, only_empty: bool = False) -> None:
        """Ends a session and deletes it: from the bus, the store and memory.

        What an engine still writes of it meanwhile nobody reads; the bus drops that with its age.
        `only_empty`: one that has calls or blocks stays as it is.

        Raises:
            Fault: `not_found`; `unavailable`: it may have ended, and is to be deleted again.
        """

        async def work(answer: Answer[None]) -> None:
            async with self._intake.writing(session_id) as epoch:
                if not only_empty or not await self._has_calls(tenant, session_id):
                    await self._delete(tenant, session_id, epoch)
                answer.give(None)

        await self._shell.tasks.answered(work, f"delete {session_id}")

    async def _has_calls(self, tenant: str, session_id: str) -> bool:
        live = find_session(self._shell.machine.state, tenant, session_id)
        if live is not None:
            return bool(live.calls or live.blocks.all)
        record = await self._intake.ended(tenant, session_id)
        return bool(record.calls or record.blocks)

    async def _delete(self, tenant: str, session_id: str, epoch: int) -> None:
        if find_session(self._shell.machine.state, tenant, session_id) is not None:
            await self._intake.close_now(tenant, session_id, epoch)
        else:
            await self._intake.ended(tenant, session_id)
        await self._shell.quiet(session_id)
        await self._purge(tenant, session_id)
        await self._shell.store.delete_session(tenant, session_id, epoch)
        self._shell.shards.check(session_id, epoch)
        self._shell.apply(TimerFired(Timer(TimerKind.FORGET, session_id)))

    async def _purge(self, tenant: str, session_id: str) -> None:
        try:
            await self._shell.values.purge(tenant, session_id)
        except TROUBLE as error:
            raise Fault(
                errors.UNAVAILABLE,
                f"the session can't be taken off the bus ({error!r}); delete it again",
                session_id=session_id,
                retry_after_ms=1000,
            ) from error
