"""Items: what a conversation is made of, as clients send and get them.

Clients send back what they got, so members that are not read here are let pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from parrot_gateway.openai.members import Member
from parrot_gateway.openai.responses.ids import ResponseId

TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "refusal"})


def _text_part(given: object) -> object:
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind not in TEXT_PARTS:
        raise ValueError(f"a part of type {kind[:64]!r} can't be read; models here read text")
    return given


class TextPart(Member):
    """A text, whoever wrote it."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(Member):
    """What the model said instead of what was asked for."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart, Tag("<said>")] | Annotated[RefusalPart, Tag("<refused>")],
    Discriminator(lambda given: "<refused>" if _type_of(given) == "refusal" else "<said>"),
    BeforeValidator(_text_part),
]


def _given_kind(given: object) -> str:
    return "<text>" if isinstance(given, str) else "<parts>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[Part], Tag("<parts>")], Discriminator(_given_kind)
]


def _type_of(given: Any) -> Any:
    return given.get("type") if isinstance(given, dict) else getattr(given, "type", None)


class MessageItem(Member):
    """A message."""

    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: str | None = None


class CallItem(Member):
    """A function the model called."""

    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Member):
    """What a function the model called came to."""

    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str
    output: Content


class ReasoningItem(Member):
    """What another server's model thought; models here are not told."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = Field(default_factory=list)


class ReferenceItem(Member):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: str


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _known(given: object) -> object:
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind not in _KINDS:
        raise ValueError(f"items of type {kind[:64]!r} are of tools this server does not run")
    return given


def _kind(given: Any) -> Any:
    found = _type_of(given)
    if found is None and isinstance(given, dict) and "role" not in given and "id" in given:
        return "<item_reference>"
    return f"<{found or 'message'}>"


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ReferenceItem, Tag("<item_reference>")],
    Discriminator(_kind),
    BeforeValidator(_known),
]
Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[InputItem], Tag("<parts>")], Discriminator(_given_kind)
]


def text_of(content: Content) -> str:
    """The text of a content, its parts one after another."""
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def stored(items: str | Iterable[Item]) -> list[dict[str, Any]]:
    """Input items as they are kept and listed, each content in parts; `with_ids` gives ids to the rest."""
    if isinstance(items, str):
        items = [MessageItem(role="user", content=items)]
    return [_stored(item) for item in items]


def with_ids(items: Sequence[dict[str, Any]], response: ResponseId) -> list[dict[str, Any]]:
    """The input items of a response, each with an id."""
    return [{**item, "id": item["id"] or response.input_id(place)} for place, item in enumerate(items)]


def _stored(item: Item) -> dict[str, Any]:
    made: dict[str, Any] = {"id": item.id or "", "type": item.type, "status": "completed"}
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        parts = item.content if isinstance(item.content, list) else [TextPart(type="text", text=item.content)]
        made |= {"role": item.role, "content": [_part(part, kind) for part in parts]}
        return made | ({"phase": item.phase} if item.phase is not None else {})
    if isinstance(item, CallItem):
        return made | {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    if isinstance(item, CallOutputItem):
        return made | {"call_id": item.call_id, "output": text_of(item.output)}
    return {"id": item.id or "", "type": item.type, "summary": item.summary}


def _part(part: TextPart | RefusalPart, kind: str) -> dict[str, Any]:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.refusal}
    if kind == "output_text":
        return {"type": kind, "text": part.text, "annotations": []}
    return {"type": kind, "text": part.text}
