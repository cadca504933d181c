"""What gateways send, checked by itself: texts, ids, sizes, samplings. The graph is the core's matter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from parrot_manager.core.admission import NewCall, NewValue
from parrot_manager.core.model import Edge
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id
from parrot_runtime.sampling import check_sampling
from parrot_runtime.text import check_name, check_text, too_large
from parrot_runtime.transforms import TransformChecker

INLINE_BYTES: Final = 65_536
"""More is checked off the event loop, which engines wait for."""


async def parsed_calls(messages: Sequence[manager_pb2.NewCall]) -> list[NewCall]:
    """As `parse_calls`, without keeping the event loop.

    Raises:
        Fault: as `parse_calls`.
    """
    if sum(message.ByteSize() for message in messages) <= INLINE_BYTES:
        return parse_calls(messages)
    return await asyncio.to_thread(parse_calls, messages)


def parse_calls(messages: Sequence[manager_pb2.NewCall]) -> list[NewCall]:
    """The calls of a batch.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `invalid_template`, `invalid_sampling`, `too_large`.
    """
    if len(messages) > limits.BATCH_CALLS:
        raise too_large("calls", len(messages), limits.BATCH_CALLS, unit="calls")
    _check_batch_size(message.ByteSize() for message in messages)
    checker = TransformChecker()
    return [_parse_call(message, f"calls[{place}]", checker) for place, message in enumerate(messages)]


def parse_values(messages: Sequence[manager_pb2.NewValue]) -> list[NewValue]:
    """The values of a batch.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    values = [
        parse_value(message.variable_id, message.name, message.value, f"values[{place}]")
        for place, message in enumerate(messages)
    ]
    _check_batch_size(len(value.data) for value in values)
    return values


def parse_value(variable_id: str, name: str, value: str, field: str) -> NewValue:
    """A value for a variable.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    _check_id(variable_id, f"{field}.variable_id")
    check_name(name, f"{field}.name")
    check_text(value, f"{field}.value", limit_bytes=limits.VALUE_BYTES)
    return NewValue(variable_id, name, value.encode())


def _check_batch_size(sizes: Iterable[int]) -> None:
    size = sum(sizes)
    if size > limits.BATCH_BYTES:
        raise too_large("the batch", size, limits.BATCH_BYTES)


def _parse_call(message: manager_pb2.NewCall, field: str, checker: TransformChecker) -> NewCall:
    check_name(message.name, f"{field}.name")
    check_name(message.model, f"{field}.model")
    inputs: list[Edge] = []
    outputs: list[Edge] = []
    template_bytes = 0
    for segment in message.segments:
        kind = segment.WhichOneof("piece")
        if kind == "text":
            template_bytes += len(segment.text.encode())
        elif kind == "input":
            inputs.append(_parse_hole(segment.input, field, checker))
        elif kind == "output":
            outputs.append(_parse_hole(segment.output, field, checker))
            check_sampling(segment.output.sampling, f"{field}.{segment.output.name}")
    _check_shape(field, template_bytes, len(inputs) + len(outputs), len(outputs))
    return NewCall(message.name, message.model, tuple(inputs), tuple(outputs), message.SerializeToString())


def _parse_hole(
    hole: common_pb2.InputHole | common_pb2.OutputHole, field: str, checker: TransformChecker
) -> Edge:
    check_name(hole.name, f"{field}.name")
    _check_id(hole.variable_id, f"{field}.{hole.name}")
    checker.check(hole.transforms, f"{field}.{hole.name}.transforms")
    return Edge(hole.name, hole.variable_id)


def _check_shape(field: str, template_bytes: int, holes: int, outputs: int) -> None:
    if template_bytes > limits.TEMPLATE_BYTES:
        raise too_large(f"{field}.prompt", template_bytes, limits.TEMPLATE_BYTES)
    if holes > limits.PLACEHOLDERS:
        raise too_large(f"{field}.placeholders", holes, limits.PLACEHOLDERS, unit="placeholders")
    if not outputs:
        raise Fault(
            errors.INVALID_TEMPLATE,
            f"{field} has no output, so there is nothing to generate; add an output placeholder",
            field=f"{field}.prompt",
        )


def _check_id(variable_id: str, field: str) -> None:
    if not is_id(variable_id):
        raise Fault(errors.INVALID_REQUEST, f"{field} is no variable id: {ID_RULE}", field=field)
