"""What the bus holds of an attempt that nobody will report on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import structlog

from parrot_manager.core.model import Ref, Streamed, Value
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.errors import Fault, clip
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import TROUBLE, Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.replay import replayed
from parrot_runtime.values.subjects import SessionSubjects

RETRY_S: Final = 0.25
REASON_BYTES: Final = 32

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Traces:
    """What an attempt, and those of its call before it, left of some outputs.

    Attributes:
        values: of the outputs that are complete.
        streamed: of the others, what any reader may have: text without a gap from their start.
        cut: of some output only a later part is there.
    """

    values: tuple[Value, ...] = ()
    streamed: tuple[Streamed, ...] = ()
    cut: bool = False


async def find(
    bus: Bus, tenant: str, ref: Ref, output_ids: Sequence[str], wanted: Callable[[], bool]
) -> Traces | None:
    """What is there; None when it is not wanted any more. Waits as long as the bus is away."""
    names = SessionSubjects(tenant, ref.session_id)
    finals = Finals(bus)
    while wanted():
        try:
            values = await read_values(finals, names, ref, output_ids)
            made = {value.variable_id for value in values}
            rest = [name for name in output_ids if name not in made]
            texts = await _replay(bus, names.delta, rest) if rest else {}
        except (Fault, *TROUBLE) as error:
            log.warning("traces not read yet", session_id=ref.session_id, error=repr(error))
            await asyncio.sleep(RETRY_S)
        else:
            streamed = tuple(Streamed(name, bytes(text.data)) for name, text in texts.items() if text.data)
            return Traces(values, streamed, any(text.cut and not text.data for text in texts.values()))
    return None


async def read_values(
    finals: Finals, names: SessionSubjects, ref: Ref, output_ids: Sequence[str]
) -> tuple[Value, ...]:
    """The outputs that are complete. What an earlier attempt of the call made counts as well as its own.

    Raises:
        Fault: `unavailable`, when the bus does not answer.
    """
    records = await asyncio.gather(*(finals.read(names.final(variable_id)) for variable_id in output_ids))
    return tuple(
        Value(record.variable_id, record.text.encode(), clip(record.finish_reason, REASON_BYTES))
        for record in records
        if record is not None and record.text is not None and _is_of(record, ref)
    )


def _is_of(record: FinalRecord, ref: Ref) -> bool:
    return record.call_id == ref.call_id and record.attempt <= ref.attempt


@dataclass(slots=True)
class _Text:
    """One output as its readers have it: of two attempts the later one goes on where the earlier ended.

    What follows a message the bus did not take reached nobody.
    """

    data: bytearray = field(default_factory=bytearray)
    attempt: int = 0
    cut: bool = False

    def add(self, delta: values_pb2.Delta) -> None:
        have = len(self.data)
        self.cut |= delta.offset_bytes > have
        if delta.attempt < self.attempt or delta.offset_bytes > have:
            return
        self.attempt = delta.attempt
        self.data += delta.text.encode()[have - delta.offset_bytes :]


async def _replay(bus: Bus, subject: str, output_ids: Sequence[str]) -> dict[str, _Text]:
    """The text of outputs, put together from a session's deltas.

    Raises:
        one of TROUBLE: the bus does not give them now.
    """
    texts = {variable_id: _Text() for variable_id in output_ids}
    last = await bus.last(subjects.DELTA_STREAM, subject)
    if last is None:
        return texts
    async with aclosing(replayed(bus, subject, last.seq or 0)) as messages:
        async for message in messages:
            for delta in values_pb2.StepDeltas.FromString(message.data).deltas:
                if delta.variable_id in texts:
                    texts[delta.variable_id].add(delta)
    return texts
