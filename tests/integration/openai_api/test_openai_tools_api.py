"""Tools and formats as OpenAI's own client uses them."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from tests.support.openai_stack import MODEL, OpenAIStack, says

pytestmark = pytest.mark.anyio

LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
CALLS = '<tool_call>\n{"name": "look", "arguments": {"at": "%s"}}\n</tool_call>'


class Verdict(BaseModel):
    """What an answer is held to."""

    good: bool
    grade: Literal["a", "b"]


async def test_calls_of_tools_come_as_they_are_written(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    both = "I look. " + CALLS % "the harbour" + "\n" + CALLS % "the sea"
    pieces = [{"text": both[start : start + 7]} for start in range(0, len(both), 7)]
    stack.upstream.define("calls", pieces)
    messages = says("calls", "Be brief.")
    whole = await client.chat.completions.create(model=MODEL, messages=messages, tools=[LOOK])
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    calls: Any = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["look", "look"]
    assert [json.loads(call.function.arguments)["at"] for call in calls] == ["the harbour", "the sea"]
    assert len({call.id for call in calls}) == 2
    prompt = stack.prompts()[-1]
    assert prompt.index("Be brief.") < prompt.index('"name": "look"') < prompt.index("<|im_end|>")
    stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=[LOOK], stream=True)
    arguments, said, names, reasons = ["", ""], "", [], []
    async for chunk in stream:
        for part in chunk.choices:
            said += part.delta.content or ""
            reasons.append(part.finish_reason)
            for call in part.delta.tool_calls or ():
                assert call.function is not None
                names += [call.function.name] if call.function.name else []
                arguments[call.index] += call.function.arguments or ""
    assert (said, names, reasons[-1]) == ("I look.", ["look", "look"], "tool_calls")
    assert arguments == [call.function.arguments for call in calls]


async def test_arguments_are_streamed_while_they_are_written(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    begun = (CALLS % "a long way").partition("way")[0]
    stack.upstream.define("begun", [{"text": begun}, {"wait_s": 600}])
    stream = await client.chat.completions.create(
        model=MODEL, messages=says("begun"), tools=[LOOK], stream=True
    )
    arguments = ""
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += (call.function and call.function.arguments) or ""
        if arguments:
            break
    assert arguments == '{"at": "a long '
    await stream.close()


async def test_results_of_tools_go_back_as_the_models_own_words(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("one-call", [{"text": CALLS % "x"}])
    first = await client.chat.completions.create(model=MODEL, messages=says("one-call"), tools=[LOOK])
    message = first.choices[0].message
    assert message.tool_calls
    sent: Any = [
        *says("one-call"),
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a boat"},
        {"role": "tool", "tool_call_id": "other", "content": [{"type": "text", "text": "a gull"}]},
        *says("default"),
    ]
    await client.chat.completions.create(model=MODEL, messages=sent, tools=[LOOK])
    prompt = stack.prompts()[-1]
    assert f"<|im_start|>assistant\n{CALLS % 'x'}<|im_end|>" in prompt
    results = "<tool_response>\na boat\n</tool_response>\n<tool_response>\na gull\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>" in prompt


async def test_calls_that_must_be_made_are_held_to_their_schema(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("list", [{"text": '[{"name": "look", "arguments": {"at": "x"}}]'}])
    stack.upstream.define("object", [{"text": '{"at"'}, {"text": ': "y"}'}])
    required = await client.chat.completions.create(
        model=MODEL, messages=says("list"), tools=[LOOK], tool_choice="required"
    )
    calls: Any = required.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", '{"at": "x"}')]
    assert required.choices[0].finish_reason == "tool_calls"
    assert stack.upstream.state.requests[-1]["structured_outputs"]["json"]["type"] == "array"
    named = await client.chat.completions.create(
        model=MODEL,
        messages=says("object"),
        tools=[LOOK],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    calls = named.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", '{"at": "y"}')]
    assert named.choices[0].finish_reason == "stop"
    parameters = LOOK["function"]["parameters"]
    assert stack.upstream.state.requests[-1]["structured_outputs"]["json"] == parameters


async def test_an_answer_is_held_to_a_schema_and_comes_back_parsed(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("verdict", [{"text": '{"good": true, '}, {"text": '"grade": "a"}'}])
    parsed = await client.chat.completions.parse(
        model=MODEL, messages=says("verdict"), response_format=Verdict
    )
    assert parsed.choices[0].message.parsed == Verdict(good=True, grade="a")
    schema = stack.upstream.state.requests[-1]["structured_outputs"]["json"]
    assert set(schema["properties"]) == {"good", "grade"}
    await client.chat.completions.create(
        model=MODEL, messages=says("verdict"), response_format={"type": "json_object"}
    )
    assert stack.upstream.state.requests[-1]["structured_outputs"] == {"json": {"type": "object"}}
