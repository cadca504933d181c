"""What a client asks for: the body of POST /v1/responses.

Members that OpenAI knows and that say nothing about a text (who the user is, how its cache is kept) are
taken and echoed; those that would change the answer and that nobody here can follow are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from parrot_gateway.openai.joining import Joining
from parrot_gateway.openai.members import (
    FUNCTION_CHARS,
    FUNCTION_NAME,
    TOOLS,
    Absent,
    FunctionKind,
    Member,
    Schema,
)
from parrot_gateway.openai.responses.items import Input
from parrot_gateway.sampling import MAX_TOKENS
from parrot_gateway.sent import Sent
from parrot_runtime import limits

METADATA: Final = 16
METADATA_KEY_CHARS: Final = 64
METADATA_VALUE_CHARS: Final = 512

Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
]
LOGPROBS: Final = "message.output_text.logprobs"


def _untruncated(given: object) -> object:
    if given == "auto":
        raise ValueError("nothing is left out of a conversation here; shorten it, and ask for 'disabled'")
    return given


Truncation = Annotated[Literal["disabled"], BeforeValidator(_untruncated)]


class FunctionTool(Member):
    """A function that the client runs."""

    type: FunctionKind
    name: str = Field(min_length=1, max_length=FUNCTION_CHARS, pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: Schema | None = Field(default=None, description="the arguments' JSON schema")
    strict: bool | None = None


class NamedTool(Member):
    """The tool that is to be called."""

    type: FunctionKind
    name: str


class AllowedTools(Member):
    """Those of the tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = Field(min_length=1)


def _choice_kind(given: object) -> str:
    if isinstance(given, dict):
        return "<allowed>" if given.get("type") == "allowed_tools" else "<named>"
    return "<mode>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedTool, Tag("<named>")]
    | Annotated[AllowedTools, Tag("<allowed>")],
    Discriminator(_choice_kind),
]


class TextFormat(Member):
    """What the text is to be: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = Field(default=None, max_length=FUNCTION_CHARS, pattern=FUNCTION_NAME)
    description: str | None = None
    json_schema: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _whole(self) -> TextFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("a json_schema has a schema, and nothing else has")
        return self


class TextSettings(Member):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(Member):
    """How the stream is written; what OpenAI hides lengths with is not added."""

    include_obfuscation: bool | None = None


def _bounded(given: dict[str, str]) -> dict[str, str]:
    for key, text in given.items():
        if len(key) > METADATA_KEY_CHARS or len(text) > METADATA_VALUE_CHARS:
            raise ValueError(
                f"keys have at most {METADATA_KEY_CHARS} characters, values {METADATA_VALUE_CHARS}"
            )
    return given


Metadata = Annotated[dict[str, str], Field(max_length=METADATA), AfterValidator(_bounded)]


class NewResponse(Sent):
    """A response to be made."""

    model: str | None = Field(default=None, description="the model to use; empty: any")
    input: Input = Field(description="a text of the user's, or items")
    instructions: str | None = Field(default=None, description="a system message in front of all others")
    previous_response_id: str | None = Field(
        default=None, description="goes on after this response: its items, and all before them, come first"
    )
    background: bool | None = Field(
        default=None, description="answers at once; the response goes on without the client"
    )
    store: bool | None = Field(default=None, description="false: it can't be read again")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=limits.LOGPROBS)
    tools: list[FunctionTool] | None = Field(default=None, max_length=TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    include: list[Includable] | None = None
    truncation: Truncation | None = None
    reasoning: dict[str, Any] | None = Field(default=None, description="taken, and not followed")
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = Field(
        default=None, description="flex: at little cost, sometime; priority and fast: the first token soon"
    )
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    max_tool_calls: int | None = Field(default=None, ge=1, description="of tools this server would run: none")
    client_metadata: dict[str, Any] | None = None
    access_programs: Absent = None
    image: Absent = None
    conversation: Absent = None
    prompt: Absent = None
    moderation: Absent = None
    background_options: Absent = None
    context_management: Absent = None
    parrot: Joining | None = Field(default=None, description="what OpenAI's API has no words for")

    @model_validator(mode="after")
    def _kept(self) -> NewResponse:
        if self.background and self.store is False:
            raise ValueError("a background response is read later, so it is stored; leave store out")
        return self
