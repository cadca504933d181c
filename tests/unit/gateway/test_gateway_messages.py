"""Calls whose prompt is a chat: what they become, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from parrot_gateway.compiling import compile_calls
from parrot_gateway.new_blocks import NewBatch, NewCalls
from parrot_gateway.new_calls import NewCall
from parrot_gateway.problems import invalid
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault, Kind

CALLS: TypeAdapter[NewBatch | NewCall] = TypeAdapter(NewCalls)
X = {"name": "x", "in_out": "in", "value": "a value"}
Y = {"name": "y", "in_out": "out"}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def segments(*messages: dict[str, Any], placeholders: Any = (X, Y)) -> list[tuple[str, str]]:
    """What a chat becomes: each piece's kind, and its role, text or name."""
    compiled = compile_calls(
        CALLS.validate_python({"messages": list(messages), "placeholders": list(placeholders)})
    )
    return [_told(piece) for piece in compiled.calls[0].segments]


def _told(piece: common_pb2.Segment) -> tuple[str, str]:
    kind = piece.WhichOneof("piece") or ""
    assert not piece.private
    if kind == "turn":
        return kind, piece.turn.role
    return kind, piece.plain or piece.input.name or piece.output.name


def refusal(body: dict[str, Any]) -> tuple[Kind, str]:
    try:
        compile_calls(CALLS.validate_python(body))
    except Fault as fault:
        return fault.kind, fault.field
    except ValidationError as error:
        found = invalid([{**first, "loc": ("body", *first["loc"])} for first in error.errors()])
        return found.kind, found.field
    raise AssertionError("it was accepted")


def test_messages_are_templates_and_the_output_is_the_answer() -> None:
    told = segments({"role": "system", "content": "Be {brief}."}, user("Of {{x}}!"))
    assert told == [
        ("turn", "system"),
        ("plain", "Be {brief}."),
        ("turn", "user"),
        ("plain", "Of "),
        ("input", "x"),
        ("plain", "!"),
        ("turn", "assistant"),
        ("output", "y"),
    ]


def test_an_answer_may_be_begun_and_hold_several_outputs() -> None:
    z = {"name": "z", "in_out": "out"}
    told = segments(user("{{x}}"), assistant("Sure: {{y}} and {{z}}"), placeholders=(X, Y, z))
    assert told[2:] == [
        ("turn", "assistant"),
        ("plain", "Sure: "),
        ("output", "y"),
        ("plain", " and "),
        ("output", "z"),
    ]


def test_the_same_input_may_stand_in_several_messages() -> None:
    told = segments(user("{{x}}"), assistant("So {{x}}."), user("And?"))
    assert [name for kind, name in told if kind == "input"] == ["x", "x"]


@pytest.mark.parametrize(
    ("messages", "kind", "field"),
    [
        ([], errors.INVALID_REQUEST, "messages"),
        ([user("{{x}} {{y}}")], errors.INVALID_TEMPLATE, "messages[0].content"),
        ([user("{{x}}"), assistant("{{y}}"), user("?")], errors.INVALID_TEMPLATE, "messages[1].content"),
        ([assistant("{{x}} {{y}}")], errors.INVALID_TEMPLATE, "messages"),
        ([user("{{x}}"), user("{{z}}")], errors.PLACEHOLDER_MISMATCH, "messages[1].content"),
        ([user("{{x}}"), user("{{")], errors.INVALID_TEMPLATE, "messages[1].content"),
        ([user("nothing read")], errors.PLACEHOLDER_MISMATCH, "messages"),
        ([user("{{x}}"), {"role": "<|im_end|>", "content": ""}], errors.INVALID_REQUEST, "messages[1].role"),
        ([user("{{x}}\ud83d")], errors.INVALID_TEXT, "messages[0].content"),
        ([user("{{x}}" + "x" * limits.TEMPLATE_BYTES)], errors.TOO_LARGE, "messages[0].content"),
        ([user("{{x}}")] * limits.CHAT_MESSAGES, errors.TOO_LARGE, "messages"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(messages: Any, kind: Kind, field: str) -> None:
    body = {"messages": messages, "placeholders": [X, Y]}
    assert refusal(body) == (kind, field)
    assert refusal({"calls": [body]}) == (kind, f"calls[0].{field}")


def test_a_call_has_a_prompt_or_messages() -> None:
    body = {"messages": [user("{{x}}")], "prompt": "{{x}}{{y}}", "placeholders": [X, Y]}
    assert refusal(body)[0] is errors.INVALID_REQUEST


def test_two_outputs_that_no_message_names_are_refused() -> None:
    body = {"messages": [user("{{x}}")], "placeholders": [X, Y, {"name": "z", "in_out": "out"}]}
    assert refusal(body) == (errors.PLACEHOLDER_MISMATCH, "messages")
