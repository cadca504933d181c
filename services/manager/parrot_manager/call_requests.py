"""The calls of a request, each checked by itself."""

from __future__ import annotations

from collections.abc import Iterator

from parrot_manager import specs
from parrot_manager.chat_requests import check_chat, constant_bytes
from parrot_manager.condition_requests import Checks
from parrot_manager.core.model import SANDBOX_MODEL, Edge, NativeKind
from parrot_manager.core.submissions import NewCall
from parrot_manager.native_requests import check_native
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.sampling import check_sampling
from parrot_runtime.text import check_name, too_large


def parse_call(message: manager_pb2.NewCall, field: str, checks: Checks) -> NewCall:
    """A call that stands at `field` of its request.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `invalid_template`, `invalid_sampling`, `too_large`.
    """
    check_name(message.name, f"{field}.name")
    check_name(message.model, f"{field}.model")
    template_bytes = 0
    checks.transforms.begin_call()
    for segment in message.segments:
        kind = segment.WhichOneof("piece")
        template_bytes += constant_bytes(segment)
        if kind == "input":
            checks.check_hole(segment.input, field)
        elif kind == "output":
            checks.check_hole(segment.output, field)
            check_sampling(segment.output.sampling, f"{field}.{segment.output.name}")
    check_chat(message.segments, field)
    check_native(message, field)
    if message.HasField("when"):
        checks.check_condition(message.when, f"{field}.when")
    call = read_call(message, field)
    _check_shape(field, template_bytes, call)
    return call


def read_call(message: manager_pb2.NewCall, field: str = "") -> NewCall:
    """A call that is in order."""
    spec = message.SerializeToString()
    inputs, outputs = tuple(_inputs(message)), tuple(_outputs(message))
    native, timeout_ms = specs.native_of(message)
    return NewCall(
        message.name,
        SANDBOX_MODEL if native is NativeKind.SANDBOX else message.model,
        inputs,
        outputs,
        spec,
        # Code has no prompt.
        specs.shape_of(spec, inputs, outputs) if native is None else (),
        specs.condition_of(message.when) if message.HasField("when") else None,
        field,
        native,
        timeout_ms,
    )


def _inputs(message: manager_pb2.NewCall) -> Iterator[Edge]:
    for segment in message.segments:
        if segment.HasField("input"):
            yield Edge(segment.input.name, segment.input.variable_id)


def _outputs(message: manager_pb2.NewCall) -> Iterator[Edge]:
    for segment in message.segments:
        if segment.HasField("output"):
            yield Edge(segment.output.name, segment.output.variable_id)


def _check_shape(field: str, template_bytes: int, call: NewCall) -> None:
    if template_bytes > limits.TEMPLATE_BYTES:
        raise too_large(f"{field}.prompt", template_bytes, limits.TEMPLATE_BYTES)
    holes = len(call.inputs) + len(call.outputs)
    if holes > limits.PLACEHOLDERS:
        raise too_large(f"{field}.placeholders", holes, limits.PLACEHOLDERS, unit="placeholders")
    if not call.outputs:
        raise Fault(
            errors.INVALID_TEMPLATE,
            f"{field} has no output, so there is nothing to generate; add an output placeholder",
            field=f"{field}.prompt",
        )
