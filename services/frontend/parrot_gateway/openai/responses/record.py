"""What is kept of a request, in a variable of its session: any gateway can tell the response from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from parrot_gateway.openai.members import Function
from parrot_gateway.openai.responses.asked import LOGPROBS, NewResponse
from parrot_gateway.openai.responses.ids import ResponseId
from parrot_gateway.openai.responses.items import InputItem, Item
from parrot_gateway.openai.tool_reader import Reader
from parrot_gateway.openai.toolbox import Mode, Toolbox
from parrot_runtime import errors
from parrot_runtime.errors import Fault

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


class Record(BaseModel):
    """A request, as it is kept.

    Attributes:
        echo: the members of the response that say what was asked for.
        input: the request's own items.
        history: the items of the responses before it.
        output_variable: the variable the model writes.
        own: it has a session to itself, which ends with it.
        session_key: under which that is found again; empty: the client gave none.
        stored: it may be read again.
        logprobs: those of its tokens are told.
        mode: whether the text is calls of functions, as `Toolbox` has it.
        functions: the names of those it may call.
        any_text: what is no call may be any text.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    echo: dict[str, Any]
    input: list[dict[str, Any]]
    history: list[dict[str, Any]]
    output_variable: str
    own: bool
    session_key: str
    stored: bool
    background: bool
    logprobs: bool
    mode: Mode
    functions: list[str]
    any_text: bool

    @classmethod
    def read(cls, text: str, response: ResponseId) -> Record:
        """What `to_text` wrote.

        Raises:
            Fault: `not_found`, for what something else wrote.
        """
        try:
            record = cls.model_validate_json(text)
            kept = [*record.input, *record.history]
            _ITEMS.validate_python(kept)
        except ValidationError:
            raise not_found(response) from None
        if not (record._is_read_by_tools and all(isinstance(item.get("id"), str) for item in kept)):
            raise not_found(response)
        return record

    @property
    def _is_read_by_tools(self) -> bool:
        """Whether there are functions where the text may be calls of them, and only there."""
        return bool(self.functions) == (self.mode != "none")

    def reader(self) -> Reader:
        """Reads what the model wrote, from its beginning."""
        functions = tuple(Function.model_construct(name=name) for name in self.functions)
        schema: dict[str, Any] | None = None if self.any_text else {}
        return Toolbox(functions, self.mode, text_schema=schema).reader()

    def to_text(self) -> str:
        """The record, as its variable's value: the same for the same request."""
        return json.dumps(self.model_dump(), ensure_ascii=False, separators=(",", ":"))


def record_of(
    asked: NewResponse,
    *,
    items: Sequence[dict[str, Any]],
    history: Sequence[dict[str, Any]],
    toolbox: Toolbox,
    output_variable: str,
    own: bool = True,
    session_key: str = "",
) -> Record:
    """What is kept of a request; `items` and `history` as `items.stored` makes them."""
    return Record(
        echo=_echo(asked),
        input=list(items),
        history=list(history),
        output_variable=output_variable,
        own=own,
        session_key=session_key,
        stored=asked.store is not False,
        background=bool(asked.background),
        logprobs=LOGPROBS in (asked.include or ()),
        mode=toolbox.mode,
        functions=[function.name for function in toolbox.functions],
        any_text=toolbox.text_schema is None,
    )


def parsed_items(items: Sequence[dict[str, Any]], response: ResponseId) -> list[Item]:
    """Items of a record, to be read by a model.

    Raises:
        Fault: `not_found`, for what something else wrote.
    """
    try:
        found = _ITEMS.validate_python(items)
    except ValidationError:
        raise not_found(response) from None
    return [item for item in found if item.type != "item_reference"]


def not_found(response: ResponseId | str) -> Fault:
    """The refusal of a response that is not there, or not to be read."""
    return Fault(errors.NOT_FOUND, f"there is no response {str(response)[:80]!r}", field="response_id")


def _echo(asked: NewResponse) -> dict[str, Any]:
    choice = asked.tool_choice
    return {
        "background": bool(asked.background),
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "model": asked.model or "",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default" if asked.service_tier in {None, "auto"} else asked.service_tier,
        "store": asked.store is not False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": _text(asked),
        "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
        "tools": [_tool(tool.model_dump()) for tool in asked.tools or ()],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        "user": asked.user,
    }


def _text(asked: NewResponse) -> dict[str, Any]:
    wanted = asked.text.format if asked.text is not None else None
    made = wanted.model_dump(by_alias=True, exclude_none=True) if wanted is not None else {"type": "text"}
    return {"format": made, "verbosity": (asked.text and asked.text.verbosity) or "medium"}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    # The official client reads a tool's strictness as a truth value.
    return {**tool, "strict": tool["strict"] is not False}
