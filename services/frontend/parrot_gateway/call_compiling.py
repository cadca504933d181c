"""One call, from the client's form to the manager's. What stands in a block's body is compiled alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parrot.errors import PlaceholderError, TemplateError
from parrot.template import NAME_CHARS, Hole, Piece, bind, parse
from parrot_gateway import models
from parrot_gateway.chat_compiling import ChatPiece, Turn, add_messages, chat_pieces
from parrot_gateway.compiled import Compiled, check_id
from parrot_gateway.conditions import compile_condition
from parrot_gateway.headers import criteria_of
from parrot_gateway.natives import compile_native
from parrot_gateway.new_calls import Native, NewCall, NewPlaceholder
from parrot_gateway.sampling import SamplingSettings, compile_sampling
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.sampling import guide_bytes
from parrot_runtime.text import check_name, too_large

_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARS - 1}}}\Z")


def compile_call(
    compiled: Compiled, call: NewCall, at: str, *, in_body: bool = False
) -> tuple[manager_pb2.NewCall, list[models.PlaceholderResource]]:
    """A call whose fields stand behind `at` in their request, and what stands for its placeholders.

    Args:
        in_body: it belongs to a block, so that outputs without an id are called what their placeholders are.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    check_name(call.name, f"{at}name")
    check_name(call.model, f"{at}model")
    if call.prompt is not None:
        compiled.add_text(call.prompt, f"{at}prompt", limits.TEMPLATE_BYTES)
    if call.messages is not None:
        add_messages(compiled, call.messages, at)
    if len(call.placeholders) > limits.PLACEHOLDERS:
        raise too_large(f"{at}placeholders", len(call.placeholders), limits.PLACEHOLDERS, unit="entries")
    by_name, samplings = _declared(compiled, call, at)
    when = compile_condition(compiled, call.when, f"{at}when") if call.when is not None else None
    pieces = _pieces(call, by_name, at)
    variables = {
        name: _variable(compiled, placeholder, f"{at}placeholders[{index}]", in_body=in_body)
        for index, (name, placeholder) in enumerate(by_name.items())
    }
    _want(compiled, call, variables, at, in_body=in_body)
    made = manager_pb2.NewCall(
        name=call.name,
        model=call.model,
        segments=_segments(pieces, by_name, variables, samplings),
        when=when,
        native=_native(compiled, call, at),
    )
    return made, [
        models.PlaceholderResource(name=name, in_out=p.in_out, semantic_var_id=variables[name])
        for name, p in by_name.items()
    ]


def _declared(
    compiled: Compiled, call: NewCall, at: str
) -> tuple[dict[str, NewPlaceholder], dict[str, common_pb2.Sampling]]:
    """The placeholders by name, each checked by itself, and the sampling of those that are outputs."""
    by_name: dict[str, NewPlaceholder] = {}
    samplings: dict[str, common_pb2.Sampling] = {}
    compiled.transforms.begin_call()
    for index, placeholder in enumerate(call.placeholders):
        where = f"{at}placeholders[{index}]"
        _check_placeholder(placeholder, where, call.native)
        compiled.add_transforms(placeholder.transforms, f"{where}.transforms")
        if placeholder.in_out == "out" and call.native is None:
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


def _want(compiled: Compiled, call: NewCall, variables: dict[str, str], at: str, *, in_body: bool) -> None:
    """Notes which outputs will be read, and how."""
    for index, placeholder in enumerate(call.placeholders):
        if placeholder.criteria is None:
            continue
        where = f"{at}placeholders[{index}].criteria"
        if in_body or placeholder.in_out == "in":
            what = "an output of a block's body" if in_body else "an input"
            raise Fault(errors.INVALID_REQUEST, f"{where}: {what} has none", field=where)
        criteria = criteria_of(placeholder.criteria.kind, placeholder.criteria.deadline_unix_ms, where)
        compiled.wanted.append(manager_pb2.Wanted(variable_id=variables[placeholder.name], criteria=criteria))


def _pieces(call: NewCall, by_name: dict[str, NewPlaceholder], at: str) -> Sequence[ChatPiece]:
    if call.native is not None:
        return _holes(by_name, at)
    pieces: Sequence[ChatPiece]
    if call.messages is not None:
        pieces = chat_pieces(call.messages, *_sides(by_name), at)
    else:
        pieces = _bound(call.prompt or "", by_name, at)
    holes = sum(isinstance(piece, Hole) for piece in pieces)
    if holes > limits.PLACEHOLDERS:
        where = f"{at}prompt" if call.messages is None else f"{at}messages"
        raise too_large(where, holes, limits.PLACEHOLDERS, unit="holes")
    return pieces


def _bound(prompt: str, by_name: dict[str, NewPlaceholder], at: str) -> tuple[Piece, ...]:
    try:
        return bind(parse(prompt), *_sides(by_name))
    except PlaceholderError as error:
        names = list(by_name)
        at_hole = error.line > 0 or error.name not in by_name
        where = f"{at}prompt" if at_hole else f"{at}placeholders[{names.index(error.name)}].name"
        raise Fault(errors.PLACEHOLDER_MISMATCH, f"{where}: {error}", field=where) from None
    except TemplateError as error:
        raise Fault(errors.INVALID_TEMPLATE, f"{at}prompt: {error}", field=f"{at}prompt") from None


def _sides(by_name: dict[str, NewPlaceholder]) -> tuple[list[str], list[str]]:
    """The names of inputs, and of outputs."""
    inputs = [name for name, placeholder in by_name.items() if placeholder.in_out == "in"]
    return inputs, [name for name in by_name if name not in set(inputs)]


def _holes(by_name: dict[str, NewPlaceholder], at: str) -> tuple[Piece, ...]:
    """What stands for the prompt of a native call: its inputs and then its outputs, without text."""
    inputs = [Hole(name, "input", 0, 0) for name, p in by_name.items() if p.in_out == "in"]
    outputs = [Hole(name, "output", 0, 0) for name, p in by_name.items() if p.in_out == "out"]
    if not outputs:
        where = f"{at}placeholders"
        raise Fault(
            errors.PLACEHOLDER_MISMATCH,
            f"{where}: a native call has no output, so nobody could tell that it is done; add one",
            field=where,
        )
    return (*inputs, *outputs)


def _native(compiled: Compiled, call: NewCall, at: str) -> manager_pb2.Native | None:
    if call.native is None:
        return None
    if call.model:
        why = f"{at}model: no model makes what a native call makes; leave it out"
        raise Fault(errors.INVALID_REQUEST, why, field=f"{at}model")
    return compile_native(compiled, call.native, f"{at}native")


def _check_placeholder(placeholder: NewPlaceholder, where: str, native: Native | None) -> None:
    check_name(placeholder.name, f"{where}.name")
    given = (placeholder.semantic_var_id is not None) + (placeholder.value is not None)
    if placeholder.in_out == "in" and given != 1:
        raise Fault(
            errors.INVALID_REQUEST,
            f"{where}: an input has either a semantic_var_id or a value, and this has "
            f"{'both' if given else 'neither'}",
            field=where,
        )
    if placeholder.sampling is not None and (placeholder.in_out == "in" or native is not None):
        what = "an input" if placeholder.in_out == "in" else "the output of a native call"
        raise Fault(errors.INVALID_REQUEST, f"{where}.sampling: {what} has none", field=f"{where}.sampling")
    if placeholder.in_out == "out" and placeholder.value is not None:
        raise Fault(errors.INVALID_REQUEST, f"{where}.value: an output has none", field=f"{where}.value")
    if placeholder.semantic_var_id is not None:
        check_id(placeholder.semantic_var_id, f"{where}.semantic_var_id")
    if native is not None and not _NAME.match(placeholder.name):
        raise Fault(
            errors.INVALID_REQUEST,
            f"{where}.name: in a native call it is the name of a parameter: ASCII letters, digits and '_', "
            "no digit first",
            field=f"{where}.name",
        )


def _variable(compiled: Compiled, placeholder: NewPlaceholder, where: str, *, in_body: bool) -> str:
    """The id of the variable that stands for a placeholder; a value becomes a variable of its own."""
    if placeholder.semantic_var_id is not None:
        return placeholder.semantic_var_id
    if in_body and placeholder.value is None:
        check_id(placeholder.name, f"{where}.name")
        return placeholder.name
    variable_id = compiled.new_id()
    if placeholder.value is not None:
        compiled.add_text(placeholder.value, f"{where}.value", limits.VALUE_BYTES)
        compiled.values.append(
            manager_pb2.NewValue(variable_id=variable_id, name=placeholder.name, value=placeholder.value)
        )
    return variable_id


def _segments(
    pieces: Sequence[ChatPiece],
    by_name: dict[str, NewPlaceholder],
    variables: dict[str, str],
    samplings: dict[str, common_pb2.Sampling],
) -> list[common_pb2.Segment]:
    in_chat = any(isinstance(piece, Turn) for piece in pieces)
    made: list[common_pb2.Segment] = []
    for piece in pieces:
        if isinstance(piece, Turn):
            made.append(common_pb2.Segment(turn=common_pb2.Turn(role=piece.role)))
        elif isinstance(piece, Hole):
            sampling = samplings.get(piece.name)
            made.append(_hole(piece, variables[piece.name], by_name[piece.name], sampling))
        elif in_chat:
            made.append(common_pb2.Segment(plain=piece.text))
        else:
            made.append(common_pb2.Segment(text=piece.text))
    return made


def _hole(
    hole: Hole, variable_id: str, placeholder: NewPlaceholder, sampling: common_pb2.Sampling | None
) -> common_pb2.Segment:
    transforms = placeholder.transforms
    if hole.direction == "input":
        read = common_pb2.InputHole(name=hole.name, variable_id=variable_id, transforms=transforms)
        return common_pb2.Segment(input=read)
    return common_pb2.Segment(
        output=common_pb2.OutputHole(
            name=hole.name, variable_id=variable_id, sampling=sampling, transforms=transforms
        )
    )
