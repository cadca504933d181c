"""The members of OpenAI's requests: what is taken, and what has to be refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from parrot_runtime import limits

TOOLS: Final = 128
FUNCTION_NAME: Final = r"^[A-Za-z0-9_-]+$"
FUNCTION_CHARS: Final = 64


class Member(BaseModel):
    """A part of a request that may carry more than is looked at, such as a message that is sent back."""

    model_config = ConfigDict(extra="ignore", strict=True)


def _nothing(given: object) -> None:
    if given is not None:
        raise ValueError("this server has none; leave it out")


Absent = Annotated[None, BeforeValidator(_nothing, json_schema_input_type=None)]
"""A member that OpenAI knows, and that must not be set here."""


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [schema]
    for _ in range(limits.SCHEMA_DEPTH):
        level = [inner for found in level for inner in (found.values() if isinstance(found, dict) else found)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return schema
    raise ValueError(f"it is nested more than {limits.SCHEMA_DEPTH} levels deep")


Schema = Annotated[dict[str, Any], AfterValidator(_shallow)]
"""A JSON schema."""


def _text_kind(given: object) -> object:
    if isinstance(given, str) and given not in {"text", "refusal"}:
        raise ValueError(f"a part of type {given[:40]!r} can't be read here; send text")
    return given


class ContentPart(Member):
    """A part of a message's content."""

    type: Annotated[Literal["text", "refusal"], BeforeValidator(_text_kind)]
    text: str = ""
    refusal: str = ""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind in {"text", "refusal"} and given.get(kind) is None:
            raise ValueError(f"it has no {kind}")
        return given


def _content_kind(given: object) -> str:
    return "<parts>" if isinstance(given, list) else "<text>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ContentPart], Tag("<parts>")], Discriminator(_content_kind)
]


class CalledFunction(Member):
    """What a call of the assistant's called."""

    name: str
    arguments: str = ""


def _function_kind(given: object) -> object:
    if isinstance(given, str) and given != "function":
        raise ValueError(f"there are no tools of type {given[:40]!r} here; a tool is a function")
    return given


FunctionKind = Annotated[Literal["function"], BeforeValidator(_function_kind)]


class MadeCall(Member):
    """A call that the assistant made."""

    id: str = ""
    type: FunctionKind = "function"
    function: CalledFunction


class ChatMessage(Member):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = Field(default=None, description="a text, or parts of type text")
    name: str | None = None
    tool_calls: list[MadeCall] | None = Field(default=None, description="assistant: the calls it made")
    tool_call_id: str | None = Field(default=None, description="tool: the call this is the result of")

    @model_validator(mode="after")
    def _whole(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("it has no content")
        if self.role != "assistant" and self.tool_calls:
            raise ValueError("only the assistant makes tool_calls")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts of its content."""
        if not isinstance(self.content, list):
            return [self.content] if self.content else []
        return [part.text or part.refusal for part in self.content]


class Function(Member):
    """A function that the client runs."""

    name: str = Field(min_length=1, max_length=FUNCTION_CHARS, pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: Schema | None = Field(default=None, description="the arguments' JSON schema")
    strict: bool | None = None


class Tool(Member):
    """A tool the model may use."""

    type: FunctionKind
    function: Function


class FunctionName(Member):
    """One of the functions."""

    name: str


class NamedTool(Member):
    """The tool that is to be called."""

    type: FunctionKind
    function: FunctionName


class AllowedTools(Member):
    """Those of the tools that may be used."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = Field(min_length=1)


class AllowedChoice(Member):
    """That only some of the tools may be used."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(given: object) -> str:
    if isinstance(given, str):
        return "<mode>"
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", "")
    return "<allowed>" if kind == "allowed_tools" else "<named>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedTool, Tag("<named>")]
    | Annotated[AllowedChoice, Tag("<allowed>")],
    Discriminator(_choice_kind),
]


class JsonSchema(Member):
    """A schema with its name."""

    name: str = Field(default="", max_length=FUNCTION_CHARS)
    schema_: Schema | None = Field(default=None, alias="schema")


class ResponseFormat(Member):
    """What the text is to be: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("a format of type json_schema has a json_schema, and no other has")
        return self

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """The schema of what is written; None: any text."""
        if self.type == "text":
            return None
        schema = self.json_schema.schema_ if self.json_schema is not None else None
        return schema if schema is not None else {"type": "object"}


class StreamOptions(Member):
    """How a stream is written; what OpenAI hides lengths with is not added."""

    include_usage: bool | None = Field(default=None, description="a last chunk tells of the tokens used")
