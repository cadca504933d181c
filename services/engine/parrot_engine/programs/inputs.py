"""Reads the values a program fills, from the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord, Finals

READ_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class InputValue:
    """An input's text, and the W3C headers of the span that wrote it."""

    text: str
    trace: Mapping[str, str]


async def read_inputs(finals: Finals, program: engine_pb2.RunProgram) -> dict[str, InputValue]:
    """Every variable the program fills, by id, each read once.

    Raises:
        Fault: `value_unavailable`, when one has no value on the bus, or the bus does not answer
            for `READ_TIMEOUT_S`.
    """
    sources = {
        operation.fill.variable.variable_id: operation.fill.variable
        for operation in program.operations
        if operation.fill.WhichOneof("content") == "variable"
    }
    results = await asyncio.gather(
        *(_read(finals, source) for source in sources.values()), return_exceptions=True
    )
    values: dict[str, InputValue] = {}
    for variable_id, result in zip(sources, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        values[variable_id] = result
    return values


async def _read(finals: Finals, source: engine_pb2.VariableSource) -> InputValue:
    record = await _read_patiently(finals, source)
    if record is None:
        raise _unavailable(source, "is not on the bus")
    if record.text is None:
        raise _unavailable(source, "ended without a value")
    return InputValue(record.text, record.trace)


async def _read_patiently(finals: Finals, source: engine_pb2.VariableSource) -> FinalRecord | None:
    """Reads through a restart of the bus."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            return await finals.read(source.final_subject)
        except Fault as fault:
            if time.monotonic() >= deadline:
                raise _unavailable(source, f"can't be read: {fault.message}") from fault
            await asyncio.sleep(RETRY_S)


def _unavailable(source: engine_pb2.VariableSource, what: str) -> Fault:
    return Fault(
        errors.VALUE_UNAVAILABLE,
        f"the value of variable {source.variable_id} {what}; submit the call again",
        variable_id=source.variable_id,
    )
