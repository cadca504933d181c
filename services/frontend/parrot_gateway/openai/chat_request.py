"""What a client asks for: the body of POST /v1/chat/completions.

Members that say nothing about a text (who the user is, how its cache is kept) or that only ask for more or
less effort are taken, and not followed; those that would change the answer and that nobody here can follow
are refused, as is what OpenAI does not know.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from parrot_gateway.openai.agents import Place
from parrot_gateway.openai.conversation import segments_of, turns_of
from parrot_gateway.openai.generation import Generation
from parrot_gateway.openai.members import TOOLS, Absent, ChatMessage, ResponseFormat, Tool, ToolChoice
from parrot_gateway.openai.plans import plan_of
from parrot_gateway.openai.runs import Plan
from parrot_gateway.openai.toolbox import Toolbox
from parrot_gateway.sampling import MAX_TOKENS
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

NAME = "chat"
"""What calls of chats are called."""


class NewChat(Generation):
    """A chat to be answered."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="longest answer; by default what the window leaves"
    )
    logprobs: bool | None = Field(
        default=None, description="tells the tokens' logprobs; of a stream with its last chunk"
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=limits.LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # Taken, and not followed.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    audio: Absent = None
    web_search_options: Absent = None
    functions: Absent = None
    function_call: Absent = None
    moderation: Absent = None

    @model_validator(mode="after")
    def _together(self) -> NewChat:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs are told with logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are two names of one limit; send one")
        return self

    @property
    def toolbox(self) -> Toolbox:
        """The tools, and what the answer has to be.

        Raises:
            Fault: `invalid_request`.
        """
        text_schema = self.response_format.schema_of_text if self.response_format is not None else None
        return Toolbox.of(
            self.tools, self.tool_choice, several=self.parallel_tool_calls, text_schema=text_schema
        )


def plan_chat(
    chat: NewChat,
    toolbox: Toolbox,
    key: str,
    *,
    digest: str = "",
    place: Place,
    criteria: manager_pb2.Criteria | None = None,
) -> Plan:
    """The calls that answer a chat; see `plan_of`.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    chat.check()
    inputs = chat.parrot.inputs if chat.parrot is not None else {}
    sampling = chat.sampling(
        chat.max_completion_tokens or chat.max_tokens,
        (chat.top_logprobs or 0) if chat.logprobs else None,
        toolbox.schema,
        "tools" if toolbox.mode in {"required", "named"} else "response_format",
    )
    if chat.stop and toolbox.mode in {"required", "named"}:
        raise Fault(errors.INVALID_REQUEST, "stop: it would cut calls that have to be made", field="stop")
    prompt = segments_of(turns_of(chat.messages, toolbox.instructions), inputs)
    return plan_of(
        [prompt],
        sampling,
        name=NAME,
        model=chat.model,
        key=key,
        digest=digest,
        choices=chat.choices,
        joining=chat.parrot,
        place=place,
        criteria=criteria,
    )
