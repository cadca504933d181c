"""A chat that is filled piece by piece: the model's own format, cut at the messages' contents.

Where a message's content begins is a place many chats have in common, whatever follows in each. It is
one they may share only if what the format has in front of it follows from the messages up to there: a
format may look at all of them. That is tried here, and where it does not hold, the chat's contexts are
its program's own. A format that does not have each content once, and in order, is filled all at once
where the assistant's answer begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from parrot_engine.programs.parts import Part, variable_part
from parrot_engine.text.chat import ChatFormat, ChatFormatError, ChatPiece, ContentPiece, TemplatePiece
from parrot_engine.text.tokens import PromptTokenizer
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

ASSISTANT: Final = "assistant"
KEPT_TEXTS: Final = 2_048
COMPARED: Final = 64
"""So many messages of a chat at the most share contexts: each takes a rendering of all before it, once."""
SAMPLE: Final = " q "
"""A content that shows whether its ends are trimmed."""


@dataclass(frozen=True, slots=True)
class Leads:
    """What a format has around contents that come once each, in order.

    Attributes:
        texts: in front of each content, and behind the last.
        strips: whether a content loses the white space at its ends.
    """

    texts: tuple[str, ...]
    strips: tuple[bool, ...]

    @classmethod
    def of(cls, pieces: Sequence[ChatPiece]) -> Leads | None:
        """Of a format's pieces; None: its contents come otherwise."""
        texts, strips = [""], list[bool]()
        for piece in pieces:
            if isinstance(piece, TemplatePiece):
                texts[-1] += piece.text
            elif piece.index == len(strips):
                strips.append(piece.strip)
                texts.append("")
            else:
                return None
        return cls(tuple(texts), tuple(strips))

    def begins(self, text: str, messages: int) -> bool:
        """Whether this is how a text of so many messages, of `SAMPLE` contents, begins.

        What stands behind this one's own contents, the beginning of an answer, is never stripped.
        """
        begun = [
            lead + (SAMPLE.strip() if strip else SAMPLE)
            for lead, strip in zip(self.texts[:messages], (*self.strips, False), strict=False)
        ]
        return text.startswith("".join(begun))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an operation stands: in which message's content, and whether as its first and its last piece."""

    message: int
    first: bool
    last: bool


class ChatFills:
    """The parts of each fill of a program whose messages are filled piece by piece."""

    def __init__(self, program: engine_pb2.RunProgram, tokenizer: PromptTokenizer) -> None:
        """Reads the model's format.

        Raises:
            Fault: `invalid_request`: it refuses these messages, or there is none.
        """
        self._roles = tuple(program.chat_roles)
        self._tokenizer = tokenizer
        self._format = _format_of(tokenizer)
        self._pieces = _segments(self._format, self._roles)
        contents = [piece for piece in self._pieces if isinstance(piece, ContentPiece)]
        self._stripped = frozenset(piece.index for piece in contents if piece.strip)
        self._leads = Leads.of(self._pieces)
        self._places = list(_places(program.operations))
        self._shared = sum(operation.fill.HasField("shared") for operation in program.operations)
        self._contents: list[list[Part]] = [[] for _ in self._roles]

    def own_from(self) -> int:
        """The place of the first operation whose context must be the program's own."""
        for number, place in enumerate(self._places[: self._shared]):
            several = place.message in self._stripped and not (place.first and place.last)
            if several or not self._may_share(place.message + 1):
                return number
        return self._shared

    def parts(self, number: int, fill: engine_pb2.Fill) -> Iterator[Part]:
        """What the operation of this number, a fill of a turn or of a content, adds to its context."""
        if fill.WhichOneof("content") == "chat_turn":
            yield from self._turn(fill.chat_turn)
            return
        place = self._places[number]
        part = self._content(fill, place)
        if self._leads is not None or place.message >= len(self._roles):
            yield part
        else:
            self._contents[place.message].append(part)

    def _turn(self, message: int) -> Iterator[Part]:
        if self._leads is not None:
            yield self._template(self._leads.texts[message])
        elif message == len(self._roles):
            for piece in self._pieces:
                if isinstance(piece, ContentPiece):
                    yield from self._contents[piece.index]
                else:
                    yield self._template(piece.text)

    def _content(self, fill: engine_pb2.Fill, place: _Place) -> Part:
        strip = place.message in self._stripped
        start, end = strip and place.first, strip and place.last
        if fill.WhichOneof("content") == "variable":
            return variable_part(fill.variable, *_trimming(start=start, end=end))
        text = fill.plain_text.lstrip() if start else fill.plain_text
        token_ids = self._tokenizer.encode_value(text.rstrip() if end else text)
        return Part(tuple(token_ids), private=fill.private)

    def _may_share(self, messages: int) -> bool:
        if self._leads is None or messages > COMPARED:
            return False
        usual = usual_text(self._format, (*self._roles, ASSISTANT)[:messages])
        return usual is not None and self._leads.begins(usual, messages)

    def _template(self, text: str) -> Part:
        return Part(tuple(self._tokenizer.encode_template(text)))


@lru_cache(maxsize=KEPT_TEXTS)
def usual_text(chat_format: ChatFormat, roles: tuple[str, ...]) -> str | None:
    """How the format has these messages alone, their contents `SAMPLE`; None: it does not take them.

    Remembered beyond midnight on purpose: where a format says the day, what is shared holds the one of
    before, and chats of the new day are to keep away from it.
    """
    try:
        return chat_format.text(roles, [SAMPLE] * len(roles))
    except ChatFormatError:
        return None


def _places(operations: Sequence[engine_pb2.Operation]) -> Iterator[_Place]:
    """A turn stands by itself, as the first and last piece of what is in front of its message's content."""
    message = 0
    turns = [operation.fill.WhichOneof("content") == "chat_turn" for operation in operations]
    for number, operation in enumerate(operations):
        if turns[number]:
            message = operation.fill.chat_turn
            yield _Place(message, first=True, last=True)
        else:
            first = number == 0 or turns[number - 1]
            last = number + 1 == len(operations) or turns[number + 1]
            yield _Place(message, first, last)


def _trimming(*, start: bool, end: bool) -> tuple[str, ...]:
    if start and end:
        return ("strip",)
    return ("strip_start",) * start + ("strip_end",) * end


def _format_of(tokenizer: PromptTokenizer) -> ChatFormat:
    if tokenizer.chat_format is None:
        raise Fault(
            errors.INVALID_REQUEST, "the model was not made for chats; send a prompt instead of messages"
        )
    return tokenizer.chat_format


def _segments(chat_format: ChatFormat, roles: Sequence[str]) -> tuple[ChatPiece, ...]:
    try:
        return chat_format.segments(roles)
    except ChatFormatError as error:
        raise Fault(errors.INVALID_REQUEST, f"the model's chat format refuses this: {error}") from None
