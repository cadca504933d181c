"""Turns calls as clients send them into calls as the manager takes them, and refuses what is wrong.

All limits are enforced here, before the manager is asked for anything. A value can't become template
text: it travels beside the template, as a variable of its own.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from hashlib import blake2b

from parrot.errors import PlaceholderError, TemplateError
from parrot.template import Hole, Piece, Text, bind, parse
from parrot_gateway import models
from parrot_gateway.sampling import SamplingSettings, compile_sampling
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id, new_variable_id
from parrot_runtime.sampling import guide_bytes
from parrot_runtime.text import check_name, check_text, too_large
from parrot_runtime.transforms import TransformChecker

# What the manager calls a call of a batch, and its hole or another part of it.
_PART = re.compile(r"calls\[(\d+)\](?:\.(\w+))?\Z")
_OF_HOLES = frozenset({errors.DUPLICATE_PRODUCER, errors.UNPRODUCED_VARIABLE})


@dataclass(slots=True)
class Compiled:
    """A batch for the manager, and what the client is told of it.

    Attributes:
        key: the request's idempotency key: the same request under the same key gives the same batch, the
            ids that are made for it included. Empty: it has none.
    """

    key: str = ""
    made_ids: int = 0
    calls: list[manager_pb2.NewCall] = field(default_factory=list)
    values: list[manager_pb2.NewValue] = field(default_factory=list)
    placeholders: list[list[models.PlaceholderResource]] = field(default_factory=list)
    size_bytes: int = 0
    transforms: TransformChecker = field(default_factory=TransformChecker)

    def new_id(self) -> str:
        """An id for a variable the client did not name."""
        if not self.key:
            return new_variable_id()
        self.made_ids += 1
        return f"v-{blake2b(f'{self.key}/{self.made_ids}'.encode(), digest_size=8).hexdigest()}"

    def add_text(self, text: str, where: str, limit_bytes: int) -> None:
        """Checks a template or value and counts it."""
        check_text(text, where, limit_bytes=limit_bytes)
        self.size_bytes += len(text.encode())


INLINE_CHARS = 65_536
INLINE_CALLS = 64
"""More is compiled off the event loop, which others wait for."""


async def compiled_calls(sent: models.NewBatch | models.NewCall, key: str = "") -> Compiled:
    """As `compile_calls`, without keeping the event loop.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    calls = calls_of(sent)
    if len(calls) <= INLINE_CALLS and sum(map(_chars, calls)) <= INLINE_CHARS:
        return compile_calls(sent, key)
    return await asyncio.to_thread(compile_calls, sent, key)


def _chars(call: models.NewCall) -> int:
    """What of a call takes time to check."""
    settings = [placeholder.sampling for placeholder in call.placeholders]
    schemas = [s.guide.json_schema or "" for s in settings if s is not None and s.guide is not None]
    names = [name for placeholder in call.placeholders for name in placeholder.transforms]
    return len(call.prompt) + sum(map(len, schemas)) + sum(map(len, names))


def compile_calls(sent: models.NewBatch | models.NewCall, key: str = "") -> Compiled:
    """The batch a request describes; `key`: see `Compiled`.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    compiled = Compiled(key)
    if isinstance(sent, models.NewCall):
        _compile_call(compiled, sent, "")
    else:
        _compile_batch(compiled, sent)
    if compiled.size_bytes > limits.BATCH_BYTES:
        raise too_large(
            "the batch's templates, values, transforms and guides", compiled.size_bytes, limits.BATCH_BYTES
        )
    return compiled


def calls_of(sent: models.NewBatch | models.NewCall) -> list[models.NewCall]:
    """The calls of a request, in its order."""
    return sent.calls if isinstance(sent, models.NewBatch) else [sent]


def locate(fault: Fault, sent: models.NewBatch | models.NewCall) -> Fault:
    """The manager's refusal of a batch, its field named as it stands in the request."""
    if fault.kind is errors.VARIABLE_ALREADY_SET and isinstance(sent, models.NewBatch):
        ids = [value.semantic_var_id for value in sent.variables]
        # Of an id that is sent twice, the later one is too much.
        place = len(ids) - 1 - ids[::-1].index(fault.variable_id) if fault.variable_id in ids else 0
        fault.field = f"variables[{place}].semantic_var_id"
    elif (part := _PART.match(fault.field)) is not None:
        place, name = int(part[1]), part[2] or "placeholders"
        if fault.kind in _OF_HOLES:
            names = [placeholder.name for placeholder in calls_of(sent)[place].placeholders]
            name = f"placeholders[{names.index(name)}].semantic_var_id"
        fault.field = f"calls[{place}].{name}" if isinstance(sent, models.NewBatch) else name
    return fault


def check_value(sent: models.VariableValue, variable_id: str) -> None:
    """Checks a value that a client sets.

    Raises:
        Fault: what is wrong with it.
    """
    _check_id(variable_id, "semantic_var_id")
    check_text(sent.value, "value", limit_bytes=limits.VALUE_BYTES)
    check_name(sent.name, "name")


def _compile_batch(compiled: Compiled, batch: models.NewBatch) -> None:
    if not batch.calls:
        raise Fault(errors.INVALID_REQUEST, "calls is empty; send at least one", field="calls")
    for what, count in (("calls", len(batch.calls)), ("variables", len(batch.variables))):
        if count > limits.BATCH_CALLS:
            raise too_large(what, count, limits.BATCH_CALLS, unit="entries")
    for index, value in enumerate(batch.variables):
        where = f"variables[{index}]"
        _check_id(value.semantic_var_id, f"{where}.semantic_var_id")
        check_name(value.name, f"{where}.name")
        compiled.add_text(value.value, f"{where}.value", limits.VALUE_BYTES)
        compiled.values.append(
            manager_pb2.NewValue(variable_id=value.semantic_var_id, name=value.name, value=value.value)
        )
    for index, call in enumerate(batch.calls):
        _compile_call(compiled, call, f"calls[{index}].")


def _compile_call(compiled: Compiled, call: models.NewCall, at: str) -> None:
    check_name(call.name, f"{at}name")
    check_name(call.model, f"{at}model")
    compiled.add_text(call.prompt, f"{at}prompt", limits.TEMPLATE_BYTES)
    if len(call.placeholders) > limits.PLACEHOLDERS:
        raise too_large(f"{at}placeholders", len(call.placeholders), limits.PLACEHOLDERS, unit="entries")
    by_name, samplings = _declared(compiled, call, at)
    pieces = _pieces(call, by_name, at)
    holes = sum(isinstance(piece, Hole) for piece in pieces)
    if holes > limits.PLACEHOLDERS:
        raise too_large(f"{at}prompt", holes, limits.PLACEHOLDERS, unit="holes")
    variables = {
        name: _variable(compiled, placeholder, f"{at}placeholders[{index}]")
        for index, (name, placeholder) in enumerate(by_name.items())
    }
    compiled.calls.append(
        manager_pb2.NewCall(
            name=call.name,
            model=call.model,
            segments=[_segment(piece, by_name, variables, samplings) for piece in pieces],
        )
    )
    compiled.placeholders.append(
        [
            models.PlaceholderResource(name=name, in_out=p.in_out, semantic_var_id=variables[name])
            for name, p in by_name.items()
        ]
    )


def _declared(
    compiled: Compiled, call: models.NewCall, at: str
) -> tuple[dict[str, models.NewPlaceholder], dict[str, common_pb2.Sampling]]:
    """The placeholders by name, each checked by itself, and the sampling of those that are outputs."""
    by_name: dict[str, models.NewPlaceholder] = {}
    samplings: dict[str, common_pb2.Sampling] = {}
    compiled.transforms.begin_call()
    for index, placeholder in enumerate(call.placeholders):
        where = f"{at}placeholders[{index}]"
        _check_placeholder(placeholder, where)
        compiled.transforms.check(placeholder.transforms, f"{where}.transforms")
        compiled.size_bytes += sum(len(name.encode()) for name in placeholder.transforms)
        if placeholder.in_out == "out":
            settings = placeholder.sampling or SamplingSettings()
            sampling = samplings[placeholder.name] = compile_sampling(settings, f"{where}.sampling")
            compiled.size_bytes += guide_bytes(sampling)
        if placeholder.name in by_name:
            raise Fault(
                errors.PLACEHOLDER_MISMATCH,
                f"{where}.name: {placeholder.name!r} is declared twice",
                field=f"{where}.name",
            )
        by_name[placeholder.name] = placeholder
    return by_name, samplings


def _pieces(call: models.NewCall, by_name: dict[str, models.NewPlaceholder], at: str) -> tuple[Piece, ...]:
    inputs = [name for name, placeholder in by_name.items() if placeholder.in_out == "in"]
    outputs = [name for name, placeholder in by_name.items() if placeholder.in_out == "out"]
    try:
        return bind(parse(call.prompt), inputs, outputs)
    except PlaceholderError as error:
        names = list(by_name)
        at_hole = error.line > 0 or error.name not in by_name
        where = f"{at}prompt" if at_hole else f"{at}placeholders[{names.index(error.name)}].name"
        raise Fault(errors.PLACEHOLDER_MISMATCH, f"{where}: {error}", field=where) from None
    except TemplateError as error:
        raise Fault(errors.INVALID_TEMPLATE, f"{at}prompt: {error}", field=f"{at}prompt") from None


def _check_placeholder(placeholder: models.NewPlaceholder, where: str) -> None:
    check_name(placeholder.name, f"{where}.name")
    given = (placeholder.semantic_var_id is not None) + (placeholder.value is not None)
    if placeholder.in_out == "in":
        if given != 1:
            raise Fault(
                errors.INVALID_REQUEST,
                f"{where}: an input has either a semantic_var_id or a value, and this has "
                f"{'both' if given else 'neither'}",
                field=where,
            )
        if placeholder.sampling is not None:
            raise Fault(
                errors.INVALID_REQUEST, f"{where}.sampling: an input has none", field=f"{where}.sampling"
            )
    elif placeholder.value is not None:
        raise Fault(errors.INVALID_REQUEST, f"{where}.value: an output has none", field=f"{where}.value")
    if placeholder.semantic_var_id is not None:
        _check_id(placeholder.semantic_var_id, f"{where}.semantic_var_id")


def _check_id(text: str, where: str) -> None:
    if not is_id(text):
        raise Fault(errors.INVALID_REQUEST, f"{where}: an id is {ID_RULE}", field=where)


def _variable(compiled: Compiled, placeholder: models.NewPlaceholder, where: str) -> str:
    """The id of the variable that stands for a placeholder; a value becomes a variable of its own."""
    if placeholder.semantic_var_id is not None:
        return placeholder.semantic_var_id
    variable_id = compiled.new_id()
    if placeholder.value is not None:
        compiled.add_text(placeholder.value, f"{where}.value", limits.VALUE_BYTES)
        compiled.values.append(
            manager_pb2.NewValue(variable_id=variable_id, name=placeholder.name, value=placeholder.value)
        )
    return variable_id


def _segment(
    piece: Piece,
    by_name: dict[str, models.NewPlaceholder],
    variables: dict[str, str],
    samplings: dict[str, common_pb2.Sampling],
) -> common_pb2.Segment:
    if isinstance(piece, Text):
        return common_pb2.Segment(text=piece.text)
    placeholder = by_name[piece.name]
    if piece.direction == "input":
        return common_pb2.Segment(
            input=common_pb2.InputHole(
                name=piece.name, variable_id=variables[piece.name], transforms=placeholder.transforms
            )
        )
    return common_pb2.Segment(
        output=common_pb2.OutputHole(
            name=piece.name,
            variable_id=variables[piece.name],
            sampling=samplings[piece.name],
            transforms=placeholder.transforms,
        )
    )
