"""The manager's dealings with values on the bus: collecting what engines made, publishing the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from nats.js import api
from nats.js.errors import NotFoundError

from parrot_manager.convert import to_failure
from parrot_manager.core.commands import PublishEnd, PublishValue
from parrot_manager.core.model import Ref, Value, Variable, VariableState
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import TROUBLE, Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects

RETRY_S: Final = 0.25
MISSING_RETRIES: Final = 4
PROBE_S: Final = 5.0
REPLAY_S: Final = 5.0

Headers = Mapping[str, str]
log = structlog.get_logger()


class Values:
    """Reads and publishes the ends of variables. The bus's outages are waited out."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._finals = Finals(bus)

    async def collect(
        self, tenant: str, ref: Ref, output_ids: Sequence[str], wanted: Callable[[], bool]
    ) -> tuple[Value, ...] | None:
        """What an attempt that said it was done has made; None when an output is not there after all.

        Waits as long as the bus is away and the values are `wanted`.
        """
        missing = 0
        while wanted():
            try:
                found = await self._read_all(tenant, ref, output_ids)
            except Fault as fault:
                log.warning("values not read yet", session_id=ref.session_id, reason=fault.message)
            else:
                if found is not None or missing == MISSING_RETRIES:
                    return found
                missing += 1
            await asyncio.sleep(RETRY_S)
        return None

    async def probe(self, tenant: str, ref: Ref, output_ids: Sequence[str]) -> tuple[Value, ...] | None:
        """What an attempt nobody reports on has made, if it made all; gives up when the bus stays away."""
        try:
            async with asyncio.timeout(PROBE_S):
                while True:
                    try:
                        return await self._read_all(tenant, ref, output_ids)
                    except Fault:
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            return None

    async def streamed(self, tenant: str, ref: Ref, output_ids: Sequence[str]) -> bool:
        """Whether the bus holds any text of an attempt's outputs; True when it can't be asked."""
        subject = SessionSubjects(tenant, ref.session_id).delta
        try:
            async with asyncio.timeout(REPLAY_S):
                return await self._find_delta(subject, ref, set(output_ids))
        except NotFoundError:
            return False
        except TROUBLE as error:
            log.warning("deltas not read", session_id=ref.session_id, error=repr(error))
            return True

    async def publish_value(self, command: PublishValue, trace: Headers) -> None:
        """Puts a client's value on the bus, however long that takes."""
        record = FinalRecord(command.value.variable_id, text=command.value.data.decode(), trace=trace)
        await self._publish(command.tenant, command.session_id, record)

    async def republish(
        self, tenant: str, variable: Variable, attempt: int, data: bytes, trace: Headers
    ) -> None:
        """Puts a stored value on the bus again."""
        record = FinalRecord(variable.id, variable.producer_call_id, attempt, text=data.decode(), trace=trace)
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
        await self._bus.js.purge_stream(subjects.DELTA_STREAM, subject=names.delta)

    async def _publish(self, tenant: str, session_id: str, record: FinalRecord) -> None:
        subject = SessionSubjects(tenant, session_id).final(record.variable_id)
        while True:
            try:
                await self._finals.publish(subject, record)
            except Fault as fault:
                log.warning("end not published yet", session_id=session_id, reason=fault.message)
            else:
                return

    async def _read_all(self, tenant: str, ref: Ref, output_ids: Sequence[str]) -> tuple[Value, ...] | None:
        names = SessionSubjects(tenant, ref.session_id)
        values: list[Value] = []
        for variable_id in output_ids:
            record = await self._finals.read(names.final(variable_id))
            if record is None or record.text is None or not _made_by(record, ref):
                return None
            values.append(Value(variable_id, record.text.encode()))
        return tuple(values)

    async def _find_delta(self, subject: str, ref: Ref, output_ids: set[str]) -> bool:
        js = self._bus.js
        last = await js.get_last_msg(subjects.DELTA_STREAM, subject, direct=True)
        subscription = await js.subscribe(
            subject,
            stream=subjects.DELTA_STREAM,
            ordered_consumer=True,
            config=api.ConsumerConfig(deliver_policy=api.DeliverPolicy.ALL),
        )
        try:
            while True:
                message = await subscription.next_msg(timeout=REPLAY_S)
                deltas = values_pb2.StepDeltas.FromString(message.data).deltas
                if any(delta.variable_id in output_ids and delta.attempt == ref.attempt for delta in deltas):
                    return True
                if message.metadata.sequence.stream >= (last.seq or 0):
                    return False
        finally:
            await subscription.unsubscribe()


def _made_by(record: FinalRecord, ref: Ref) -> bool:
    return record.call_id == ref.call_id and record.attempt == ref.attempt
