"""The manager's dealings with values on the bus: collecting what engines made, publishing the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from parrot_manager import traces
from parrot_manager.convert import to_failure
from parrot_manager.core.commands import PublishEnd, PublishValue
from parrot_manager.core.model import Ref, Value, Variable, VariableState
from parrot_manager.traces import Traces
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.fences import Fences
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.states import StateSubject
from parrot_runtime.values.subjects import SessionSubjects

RETRY_S: Final = 0.25
MISSING_RETRIES: Final = 4

Headers = Mapping[str, str]
log = structlog.get_logger()


class Values:
    """Reads and publishes the ends of variables. The bus's outages are waited out."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._finals = Finals(bus)
        self.fences = Fences(bus)
        self.states = StateSubject(bus)

    async def collect(
        self, tenant: str, ref: Ref, output_ids: Sequence[str], wanted: Callable[[], bool]
    ) -> tuple[Value, ...] | None:
        """What an attempt that said it was done has made; None when an output is not there after all.

        Waits as long as the bus is away and the values are `wanted`.
        """
        names = SessionSubjects(tenant, ref.session_id)
        missing = 0
        while wanted():
            try:
                found = await traces.read_values(self._finals, names, ref, output_ids)
            except Fault as fault:
                log.warning("values not read yet", session_id=ref.session_id, reason=fault.message)
            else:
                if len(found) == len(output_ids):
                    return found
                if missing == MISSING_RETRIES:
                    return None
                missing += 1
            await asyncio.sleep(RETRY_S)
        return None

    async def look(
        self, tenant: str, ref: Ref, output_ids: Sequence[str], wanted: Callable[[], bool]
    ) -> Traces | None:
        """What an attempt nobody reports on has left; see `traces.find`."""
        return await traces.find(self._bus, tenant, ref, output_ids, wanted)

    async def publish_value(self, command: PublishValue, trace: Headers) -> None:
        """Puts a client's value on the bus, however long that takes."""
        record = FinalRecord(command.value.variable_id, text=command.value.data.decode(), trace=trace)
        await self._publish(command.tenant, command.session_id, record)

    async def republish(
        self, tenant: str, variable: Variable, attempt: int, data: bytes, trace: Headers
    ) -> None:
        """Puts a stored value on the bus again."""
        record = FinalRecord(
            variable.id,
            variable.producer_call_id,
            attempt,
            text=data.decode(),
            trace=trace,
            finish_reason=variable.finish_reason,
        )
        await self._publish(tenant, variable.session_id, record)

    async def publish_end(self, command: PublishEnd, trace: Headers) -> None:
        """Tells whoever waits that a variable failed or was cancelled."""
        variable = command.variable
        why = to_failure(variable.failure)
        cancelled = variable.state is VariableState.CANCELLED
        record = FinalRecord(
            variable.id,
            variable.producer_call_id,
            command.attempt,
            failure=None if cancelled else why,
            cancelled=(why.message if why is not None else "") if cancelled else None,
            trace=trace,
        )
        await self._publish(command.tenant, command.session_id, record)

    async def purge(self, tenant: str, session_id: str) -> None:
        """Removes all the bus keeps of a session.

        Raises:
            one of TROUBLE: the bus does not do it now.
        """
        names = SessionSubjects(tenant, session_id)
        await self._bus.js.purge_stream(subjects.FINAL_STREAM, subject=names.finals)
        await self._bus.js.purge_stream(subjects.DELTA_STREAM, subject=names.log)

    async def _publish(self, tenant: str, session_id: str, record: FinalRecord) -> None:
        subject = SessionSubjects(tenant, session_id).final(record.variable_id)
        while True:
            try:
                await self._finals.publish(subject, record)
            except Fault as fault:
                log.warning("end not published yet", session_id=session_id, reason=fault.message)
            else:
                return
