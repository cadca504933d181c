"""A conversation as the turns of a prompt: roles every model's format knows, and plain text.

Calls and their results become text of the assistant's and the user's, in the words of Hermes and Qwen, so
that models whose format knows neither can read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from parrot.errors import TemplateError
from parrot.template import Hole, Text, parse
from parrot_gateway.openai.members import ChatMessage, MadeCall
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large

SYSTEM: Final = "system"
USER: Final = "user"
ASSISTANT: Final = "assistant"

_RESULTS: Final = frozenset({"tool", "function"})


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a turn's text.

    Attributes:
        where: its place in the request; empty: it is ours, and no template.
    """

    text: str
    where: str = ""


@dataclass(slots=True)
class Turn:
    """One message of the prompt."""

    role: str
    pieces: list[Piece] = field(default_factory=list)


def turns_of(messages: Sequence[ChatMessage], instructions: str = "") -> list[Turn]:
    """The turns of a conversation; `instructions`: a text of the system's, behind its first message.

    Raises:
        Fault: `invalid_text`, `too_large`, with the path of the content.
    """
    if not messages:
        raise Fault(errors.INVALID_REQUEST, "messages: send at least one", field="messages")
    if len(messages) >= limits.CHAT_MESSAGES:
        raise too_large("messages", len(messages), limits.CHAT_MESSAGES - 1, unit="messages")
    turns: list[Turn] = []
    for place, message in enumerate(messages):
        _add(turns, message, f"messages[{place}]", follows=place > 0 and messages[place - 1].role in _RESULTS)
    if instructions:
        _instruct(turns, instructions)
    _check_texts(turns)
    return turns


def segments_of(turns: Sequence[Turn], inputs: Mapping[str, str]) -> list[common_pb2.Segment]:
    """The prompt up to where the assistant answers; `inputs`: see `private_segments`.

    Raises:
        Fault: `invalid_template`, `placeholder_mismatch`.
    """
    unread = set(inputs)
    made: list[common_pb2.Segment] = []
    for turn in turns:
        made.append(common_pb2.Segment(turn=common_pb2.Turn(role=turn.role)))
        for piece in turn.pieces:
            made += _segments(piece, inputs, unread)
    check_read(unread)
    made.append(common_pb2.Segment(turn=common_pb2.Turn(role=ASSISTANT)))
    return made


def pieces_of(text: str, where: str, inputs: Mapping[str, str]) -> list[Text | Hole]:
    """A text of a request: with inputs it is a template, whose holes are those; without, it is what it is.

    Raises:
        Fault: `invalid_template`, `placeholder_mismatch`: a hole that is none of the inputs.
    """
    if not inputs or not where:
        return [Text(text)] if text else []
    try:
        pieces = parse(text)
    except TemplateError as error:
        raise Fault(errors.INVALID_TEMPLATE, f"{where}: {error}", field=where) from None
    for piece in pieces:
        if isinstance(piece, Hole) and (piece.name not in inputs or piece.direction == "output"):
            raise Fault(
                errors.PLACEHOLDER_MISMATCH,
                f"{where}: the hole {piece.name!r} at line {piece.line}, column {piece.column} is none of "
                "parrot.inputs; name its variable there",
                field=where,
            )
    return list(pieces)


def check_read(unread: set[str]) -> None:
    """Refuses inputs that no text has a hole for.

    Raises:
        Fault: `placeholder_mismatch`.
    """
    for name in sorted(unread):
        where = f"parrot.inputs.{name}"
        raise Fault(errors.PLACEHOLDER_MISMATCH, f"{where}: no text has a hole {{{{{name}}}}}", field=where)


def hole_segment(hole: Hole, inputs: Mapping[str, str]) -> common_pb2.Segment:
    """Where a variable's value goes."""
    return common_pb2.Segment(input=common_pb2.InputHole(name=hole.name, variable_id=inputs[hole.name]))


def _segments(piece: Piece, inputs: Mapping[str, str], unread: set[str]) -> Iterator[common_pb2.Segment]:
    for part in pieces_of(piece.text, piece.where, inputs):
        if isinstance(part, Hole):
            unread.discard(part.name)
            yield hole_segment(part, inputs)
        else:
            yield common_pb2.Segment(plain=part.text, private=True)


def _add(turns: list[Turn], message: ChatMessage, at: str, *, follows: bool) -> None:
    texts = message.texts
    parts = isinstance(message.content, list)
    pieces = [
        Piece(text, f"{at}.content[{place}].text" if parts else f"{at}.content")
        for place, text in enumerate(texts)
    ]
    if message.role in _RESULTS:
        wrapped = [Piece("<tool_response>\n"), *pieces, Piece("\n</tool_response>")]
        if follows:
            # Results of calls that were made at once are one turn.
            turns[-1].pieces += [Piece("\n"), *wrapped]
        else:
            turns.append(Turn(USER, wrapped))
    elif message.role == ASSISTANT:
        turns.append(Turn(ASSISTANT, pieces + _calls(message.tool_calls or [], said=bool(texts))))
    else:
        turns.append(Turn(SYSTEM if message.role == "developer" else message.role, pieces))


def _calls(calls: Sequence[MadeCall], *, said: bool) -> list[Piece]:
    texts = [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls]
    if not texts:
        return []
    return [Piece(("\n" if said else "") + "\n".join(texts))]


def _call(call: MadeCall) -> str:
    name = json.dumps(call.function.name, ensure_ascii=False)
    try:
        json.loads(call.function.arguments)
        arguments = call.function.arguments
    except (ValueError, RecursionError):
        arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments}}}'


def _instruct(turns: list[Turn], instructions: str) -> None:
    if turns[0].role == SYSTEM:
        turns[0].pieces.append(Piece(f"\n\n{instructions}"))
    else:
        turns.insert(0, Turn(SYSTEM, [Piece(instructions)]))


def _check_texts(turns: Sequence[Turn]) -> None:
    size = 0
    for turn in turns:
        for piece in turn.pieces:
            check_text(piece.text, piece.where or "messages", limit_bytes=limits.TEMPLATE_BYTES)
            size += len(piece.text.encode())
    if size > limits.TEMPLATE_BYTES:
        raise too_large("messages", size, limits.TEMPLATE_BYTES)
