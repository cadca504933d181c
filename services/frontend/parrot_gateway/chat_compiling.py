"""Messages of a call: each a template, and together the pieces of one prompt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from parrot.errors import PlaceholderError, TemplateError
from parrot.template import Hole, Piece, Text, bind, parse
from parrot_gateway.compiled import Compiled
from parrot_gateway.new_calls import NewMessage
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import too_large

ASSISTANT: Final = "assistant"


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a message begins."""

    role: str


ChatPiece = Turn | Piece


def add_messages(compiled: Compiled, messages: list[NewMessage], at: str) -> None:
    """Checks the contents, as texts, and counts them.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`.
    """
    if not messages:
        raise Fault(errors.INVALID_REQUEST, f"{at}messages: send at least one", field=f"{at}messages")
    if len(messages) >= limits.CHAT_MESSAGES:
        raise too_large(f"{at}messages", len(messages), limits.CHAT_MESSAGES - 1, unit="messages")
    size = 0
    for place, message in enumerate(messages):
        compiled.add_text(message.content, f"{at}messages[{place}].content", limits.TEMPLATE_BYTES)
        size += len(message.content.encode())
    if size > limits.TEMPLATE_BYTES:
        raise too_large(f"{at}messages", size, limits.TEMPLATE_BYTES)


def chat_pieces(
    messages: list[NewMessage], inputs: Collection[str], outputs: Collection[str], at: str
) -> list[ChatPiece]:
    """The pieces of a chat, up to its outputs; those stand in the assistant's message at its end.

    An only output that no message names is the answer to all of them.

    Raises:
        Fault: `invalid_template`, `placeholder_mismatch`, with the path of the message.
    """
    contents = [_parse(message, f"{at}messages[{place}].content") for place, message in enumerate(messages)]
    named = {piece.name for content in contents for piece in content if isinstance(piece, Hole)}
    turns = [Turn(message.role) for message in messages]
    if named.isdisjoint(outputs):
        turns.append(Turn(ASSISTANT))
        contents.append(tuple(Hole(name, "output", 0, 0) for name in outputs) if len(outputs) == 1 else ())
    # A turn is text, as far as the order of holes is concerned.
    flat = [
        piece for turn, content in zip(turns, contents, strict=True) for piece in (Text(turn.role), *content)
    ]
    try:
        bound = iter(bind(tuple(flat), inputs, outputs))
    except PlaceholderError as error:
        where = _where(error, contents, at)
        raise Fault(errors.PLACEHOLDER_MISMATCH, f"{where}: {error}", field=where) from None
    made: list[ChatPiece] = []
    for place, turn in enumerate(turns):
        next(bound)
        content = [next(bound) for _ in contents[place]]
        last = place == len(turns) - 1
        _check_outputs(turn, content, f"{at}messages[{place}]", last=last)
        made += [turn, *content]
    if turns[-1].role != ASSISTANT or len(turns) < 2:
        where = f"{at}messages"
        why = "outputs stand in the last message, which is the assistant's, behind another's"
        raise Fault(errors.INVALID_TEMPLATE, f"{where}: {why}", field=where)
    return made


def _parse(message: NewMessage, where: str) -> tuple[Piece, ...]:
    try:
        return parse(message.content)
    except TemplateError as error:
        raise Fault(errors.INVALID_TEMPLATE, f"{where}: {error}", field=where) from None


def _where(error: PlaceholderError, contents: list[tuple[Piece, ...]], at: str) -> str:
    """The message that has the hole an error is about."""
    for place, content in enumerate(contents):
        for piece in content:
            if isinstance(piece, Hole) and (piece.name, piece.line) == (error.name, error.line):
                return f"{at}messages[{place}].content"
    return f"{at}messages"


def _check_outputs(turn: Turn, content: list[Piece], where: str, *, last: bool) -> None:
    for piece in content:
        if isinstance(piece, Hole) and piece.direction == "output" and not (last and turn.role == ASSISTANT):
            raise Fault(
                errors.INVALID_TEMPLATE,
                f"{where}.content: the output {piece.name!r} stands in a message that is not the last, or "
                "not the assistant's; a call makes one answer, and what follows it is another call",
                field=f"{where}.content",
            )
