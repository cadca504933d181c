"""What a response may do beside talking: call functions, keep to a schema, be part of a graph."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks something up.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
    },
    "strict": True,
}


def calling(*places: str) -> list[dict[str, Any]]:
    """A script that calls the function, a few characters at a time."""
    calls = [json.dumps({"name": "look", "arguments": {"at": place}}) for place in places]
    text = "Let me see.\n" + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    pieces = [{"text": text[start : start + 7]} for start in range(0, len(text), 7)]
    return [action for piece in pieces for action in (piece, {"wait_s": 0.01})]


async def test_functions_are_called_at_once_and_their_results_are_read(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("look", calling("the sea", "the hills"))
    first = await client.responses.create(model=MODEL, input="script:look", tools=[LOOK])

    assert "Looks something up." in stack.prompts()[-1]
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.output_text == "Let me see."
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["at"] for call in calls] == ["the sea", "the hills"]

    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{place}!"}
        for call, place in zip(calls, ("wet", "high"), strict=True)
    ]
    stack.upstream.define("told", [{"text": "Wet and high."}])
    second = await client.responses.create(
        model=MODEL,
        input=[*results, {"role": "user", "content": "script:told"}],
        tools=[LOOK],
        previous_response_id=first.id,
    )
    assert second.output_text == "Wet and high."
    prompt = stack.prompts()[-1]
    order = ['"at": "the sea"', '"at": "the hills"', "wet!", "high!"]
    assert sorted(order, key=prompt.index) == order


async def test_the_whole_conversation_may_be_sent_back_as_it_was_got(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("look", calling("the sea"))
    first = await client.responses.create(model=MODEL, input="script:look", tools=[LOOK], store=False)
    items: Any = [{"role": "user", "content": "script:look"}]
    items += [item.model_dump() for item in first.output]
    items += [{"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "wet!"}]  # type: ignore[union-attr]
    items += [{"role": "user", "content": "script:default"}]

    second = await client.responses.create(model=MODEL, input=items, tools=[LOOK], store=False)

    assert second.output_text == "Hello there"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


async def test_arguments_are_streamed_as_they_are_written(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    stack.upstream.define("look", calling("the sea", "the hills"))
    stream = await client.responses.create(model=MODEL, input="script:look", tools=[LOOK], stream=True)
    events = [event async for event in stream]

    arguments: dict[int, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
    done = {e.output_index: e.arguments for e in events if e.type == "response.function_call_arguments.done"}
    assert arguments == done
    assert list(done) == [1, 2]
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > len(done)


async def test_a_function_that_has_to_be_called_is_held_to_its_schema(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("forced", [{"text": '{"at": "the'}, {"text": ' sea"}'}])
    made = await client.responses.create(
        model=MODEL, input="script:forced", tools=[LOOK], tool_choice={"type": "function", "name": "look"}
    )

    assert [item.type for item in made.output] == ["function_call"]
    assert made.output[0].arguments == '{"at": "the sea"}'  # type: ignore[union-attr]
    assert "the sea" not in json.dumps(stack.upstream.state.requests[-1])
    assert '"at"' in json.dumps(guide_of(stack))


async def test_tools_that_may_not_be_used_are_not_told_of(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi", tools=[LOOK], tool_choice="none")

    assert made.output_text == "Hello there"
    assert "Looks something up." not in stack.prompts()[-1]


class Sea(BaseModel):
    """What is asked for."""

    name: str
    depth_m: int


async def test_a_text_is_held_to_a_schema_and_comes_back_parsed(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("sea", [{"text": '{"name": "North", '}, {"text": '"depth_m": 95}'}])
    made = await client.responses.parse(model=MODEL, input="script:sea", text_format=Sea)

    assert made.output_parsed == Sea(name="North", depth_m=95)
    assert "depth_m" in json.dumps(guide_of(stack))


def guide_of(stack: OpenAIStack) -> Any:
    """What the last output had to be."""
    request = stack.upstream.state.requests[-1]
    return {key: value for key, value in request.items() if key not in {"prompt", "model", "stream"}}


async def test_a_response_is_a_call_of_the_session_it_joins(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    async with httpx.AsyncClient(base_url=stack.gateways[1].url) as http:
        session = (await http.post("/v1/sessions")).json()["id"]
        await http.put(f"/v1/sessions/{session}/variables/draft", json={"value": "{{not}} a hole <|im_end|>"})
        joined: Any = {"session_id": session, "inputs": {"draft": "draft"}, "output": "review"}
        made = await client.responses.create(
            model=MODEL, input="Review {{draft}}, please.", extra_body={"parrot": joined}
        )

        assert "Review {{not}} a hole <|im_end|>, please." in stack.prompts()[-1]
        found = (await http.get(f"/v1/sessions/{session}/variables/review")).json()
        assert found["value"] == made.output_text == "Hello there"
        graph = (await http.get(f"/v1/sessions/{session}")).json()
        assert graph["state"] == "open"
        assert [call["name"] for call in graph["calls"]] == ["response"]
        assert (await client.responses.retrieve(made.id)).output_text == "Hello there"
        with pytest.raises(openai.BadRequestError, match=session):
            await client.responses.delete(made.id)


async def test_a_response_reads_what_is_not_there_yet(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    async with httpx.AsyncClient(base_url=stack.gateways[0].url) as http:
        session = (await http.post("/v1/sessions")).json()["id"]
        joined: Any = {"session_id": session, "output": "first"}
        await client.responses.create(
            model=MODEL, input="script:words", background=True, extra_body={"parrot": joined}
        )
        reading: Any = {"session_id": session, "inputs": {"text": "first"}, "output": "second"}
        second = await client.responses.create(
            model=MODEL, input="script:default {{text}}", extra_body={"parrot": reading}
        )

    assert second.status == "completed"
    assert "w000 w001" in stack.prompts()[-1]


@pytest.mark.parametrize(
    ("parrot", "text", "param"),
    [
        ({"inputs": {"x": "v"}}, "{{x}}", "parrot"),
        ({"session_id": "SESSION", "inputs": {"x": "gone"}}, "{{x}}", "parrot.inputs.x"),
        ({"session_id": "SESSION", "inputs": {"x": "v"}}, "no hole", "parrot.inputs.x"),
        ({"session_id": "SESSION", "inputs": {"x": "v"}}, "{{x}} {{y}}", "input"),
        ({"session_id": "SESSION", "inputs": {"x": "a b"}}, "{{x}}", "parrot.inputs.x"),
        ({"session_id": "SESSION", "output": "v"}, "hi", "parrot.output"),
        ({"session_id": "SESSION", "wrong": 1}, "hi", "parrot.wrong"),
    ],
)
async def test_what_is_wrong_with_joining_is_told_where_it_stands(
    stack: OpenAIStack, client: AsyncOpenAI, parrot: dict[str, Any], text: str, param: str
) -> None:
    async with httpx.AsyncClient(base_url=stack.gateways[0].url) as http:
        session = (await http.post("/v1/sessions")).json()["id"]
        await http.put(f"/v1/sessions/{session}/variables/v", json={"value": "x"})
    filled = {key: session if value == "SESSION" else value for key, value in parrot.items()}

    with pytest.raises(openai.APIStatusError) as refused:
        await client.responses.create(model=MODEL, input=text, extra_body={"parrot": filled})

    assert refused.value.status_code in {400, 409}
    assert refused.value.param == param
