"""A request as a call for the manager."""

from __future__ import annotations

import json
from typing import Any, Final

from parrot_gateway.openai.members import (
    AllowedChoice,
    Function,
    FunctionName,
    Tool,
    ToolChoice,
)
from parrot_gateway.openai.members import AllowedTools as ChatAllowedTools
from parrot_gateway.openai.members import NamedTool as ChatNamedTool
from parrot_gateway.openai.responses.asked import LOGPROBS, AllowedTools, NamedTool, NewResponse
from parrot_gateway.openai.responses.prompting import Conversation
from parrot_gateway.openai.toolbox import Toolbox
from parrot_gateway.sampling import GuideSettings, SamplingSettings, compile_sampling
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name

CALL_NAME: Final = "response"
OUTPUT: Final = "output"


def toolbox_of(asked: NewResponse) -> Toolbox:
    """The tools of a request.

    Raises:
        Fault: `invalid_request`, with the path of the field.
    """
    tools = [
        Tool(type="function", function=Function(**tool.model_dump(exclude={"type"})))
        for tool in asked.tools or ()
    ]
    try:
        return Toolbox.of(
            tools, _choice(asked), several=asked.parallel_tool_calls, text_schema=_text_schema(asked)
        )
    except Fault as fault:
        where = fault.field.replace(".function.", ".")
        raise Fault(fault.kind, fault.message.replace(fault.field, where, 1), field=where) from None


def call_of(
    asked: NewResponse, conversation: Conversation, toolbox: Toolbox, output_variable: str
) -> manager_pb2.NewCall:
    """The call that makes the response.

    Raises:
        Fault: what is wrong with the request, with the path of the field.
    """
    inputs = asked.parrot.inputs if asked.parrot is not None else {}
    output = common_pb2.OutputHole(
        name=OUTPUT, variable_id=output_variable, sampling=_sampling(asked, toolbox)
    )
    return manager_pb2.NewCall(
        name=CALL_NAME,
        model=check_name(asked.model or "", "model"),
        segments=[
            *conversation.segments(toolbox.instructions, inputs),
            common_pb2.Segment(output=output),
        ],
    )


def places_of(asked: NewResponse) -> list[str]:
    """Where in the request each of its own items stands."""
    if isinstance(asked.input, str):
        return ["input"]
    return [f"input[{place}]" for place in range(len(asked.input))]


def located(fault: Fault, asked: NewResponse) -> Fault:
    """The manager's refusal of a call, its field named as it stands in the request."""
    if not fault.field.startswith("calls[0]"):
        return fault
    name = fault.field.removeprefix("calls[0]").removeprefix(".")
    inputs = asked.parrot.inputs if asked.parrot is not None else {}
    if name in inputs:
        fault.field = f"parrot.inputs.{name}"
    else:
        fault.field = "parrot.output" if name == OUTPUT else name
    return fault


def _choice(asked: NewResponse) -> ToolChoice | None:
    choice = asked.tool_choice
    if isinstance(choice, NamedTool):
        return _named(choice)
    if isinstance(choice, AllowedTools):
        allowed = ChatAllowedTools(mode=choice.mode, tools=[_named(tool) for tool in choice.tools])
        return AllowedChoice(type="allowed_tools", allowed_tools=allowed)
    return choice


def _named(choice: NamedTool) -> ChatNamedTool:
    return ChatNamedTool(type="function", function=FunctionName(name=choice.name))


def _text_schema(asked: NewResponse) -> dict[str, Any] | None:
    wanted = asked.text.format if asked.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    return {"type": "object"} if wanted.type == "json_object" else wanted.json_schema


def _sampling(asked: NewResponse, toolbox: Toolbox) -> common_pb2.Sampling:
    wants_logprobs = LOGPROBS in (asked.include or ())
    schema = toolbox.schema
    wanted: dict[str, Any] = {
        "max_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "logprobs": (asked.top_logprobs or 0) if wants_logprobs else None,
        "guide": None if schema is None else GuideSettings(json_schema=_text_of(schema)),
    }
    given = {name: setting for name, setting in wanted.items() if setting is not None}
    try:
        return compile_sampling(SamplingSettings(**given), "")
    except Fault as fault:
        where = fault.field.removeprefix(".")
        where = "text.format" if where.startswith("guide") else where
        raise Fault(fault.kind, fault.message.replace(fault.field, where, 1), field=where) from None


def _text_of(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise Fault(errors.INVALID_REQUEST, "a schema is nested too deeply", field="text.format") from None
