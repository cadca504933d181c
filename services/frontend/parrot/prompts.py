"""Prompts: a template, or the messages of a chat, with the holes in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from parrot.errors import PlaceholderError, TemplateError
from parrot.template import Direction, Hole, Piece, Text, bind, literal, parse
from parrot.text import check_text

Role = Literal["system", "user", "assistant"]
ROLES: Final = get_args(Role)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat; `content` is a template."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"the role of a message is {self.role!r}; it is one of {', '.join(ROLES)}")
        check_text(self.content, f"the {self.role}'s message")

    def to_wire(self) -> dict[str, str]:
        """The message as the server's API takes it."""
        return {"role": self.role, "content": self.content}


def system(content: str) -> Message:
    """A message of the system: who the assistant is, and how it is to answer."""
    return Message("system", content)


def user(content: str) -> Message:
    """A message of the user."""
    return Message("user", content)


def assistant(content: str) -> Message:
    """A message of the assistant: `{{output:answer}}` for what it is to say, or what it said before."""
    return Message("assistant", content)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt whose holes fit what is declared for it.

    Attributes:
        template: empty where there are messages.
        messages: in the model's own chat format.
        holes: each hole's direction by its name, in order.
    """

    template: str
    messages: tuple[Message, ...]
    holes: Mapping[str, Direction]

    @property
    def text(self) -> str:
        """All of it, for people and for measuring."""
        return self.template or "\n".join(message.content for message in self.messages)


def of_template(template: str, inputs: Collection[str], outputs: Collection[str]) -> Prompt:
    """The prompt of a template; what it calls an output need not be declared.

    Raises:
        TemplateError: it is not well formed, or does not fit what is declared.
    """
    pieces = parse(template)
    return Prompt(template, (), _bound(pieces, inputs, outputs))


def of_messages(messages: Sequence[Message], inputs: Collection[str], outputs: Collection[str]) -> Prompt:
    """The prompt of a chat, whose last message is the assistant's and has the output.

    Raises:
        TemplateError: a message is not well formed, they do not fit what is declared, or an output is
            elsewhere.
    """
    if not messages or messages[-1].role != "assistant":
        raise TemplateError(
            "the last message of a chat is the assistant's, with its output: P.assistant('{{output:answer}}')"
        )
    pieces: list[Piece] = []
    for number, message in enumerate(messages, 1):
        found = _parsed(message, number)
        pieces += [Text(f"{message.role}: "), *found]
        if number < len(messages):
            _check_no_output(found, outputs, number)
    return Prompt("", tuple(messages), _bound(tuple(pieces), inputs, outputs))


def chat_of(template: str, system_message: str, outputs: Collection[str]) -> tuple[Message, ...]:
    """A template as a chat: its outputs are the assistant's messages, what lies before each is the user's.

    White space at the ends of a message is left out.

    Raises:
        TemplateError: it is not well formed; text follows its last output.
    """
    messages = [system(system_message)] if system_message else []
    said: list[str] = []
    for piece in parse(template):
        if isinstance(piece, Hole) and (piece.direction == "output" or piece.name in outputs):
            question = "".join(said).strip()
            said.clear()
            if question:
                messages.append(user(question))
            messages.append(assistant(f"{{{{output:{piece.name}}}}}"))
        else:
            said.append(literal(piece.text) if isinstance(piece, Text) else _written(piece))
    if rest := "".join(said).strip():
        raise TemplateError(
            f"nobody answers the message that ends the chat ({rest[:40]!r}); end with an output"
        )
    return tuple(messages)


def _written(hole: Hole) -> str:
    return f"{{{{{hole.direction + ':' if hole.direction else ''}{hole.name}}}}}"


def _parsed(message: Message, number: int) -> tuple[Piece, ...]:
    try:
        return parse(message.content)
    except TemplateError as error:
        raise TemplateError(
            f"message {number}: {error}", line=error.line, column=error.column, name=error.name
        ) from None


def _check_no_output(pieces: Sequence[Piece], outputs: Collection[str], number: int) -> None:
    for piece in pieces:
        if isinstance(piece, Hole) and (piece.direction == "output" or piece.name in outputs):
            raise PlaceholderError(
                f"message {number} has the output {piece.name!r}; outputs are in the last message of a chat",
                name=piece.name,
                line=piece.line,
                column=piece.column,
            )


def _bound(
    pieces: tuple[Piece, ...], inputs: Collection[str], outputs: Collection[str]
) -> dict[str, Direction]:
    """Each hole's direction by its name, in the template's order."""
    said = [p.name for p in pieces if isinstance(p, Hole) and p.direction == "output"]
    declared = [
        *outputs,
        *(name for name in dict.fromkeys(said) if name not in outputs and name not in inputs),
    ]
    bound = bind(pieces, inputs, declared)
    holes = (piece for piece in bound if isinstance(piece, Hole))
    return {hole.name: hole.direction for hole in holes if hole.direction is not None}
