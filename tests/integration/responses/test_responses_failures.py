"""What goes wrong is told as it is: before the answer as a status, within a stream as its last event."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.gateway import running_gateway
from tests.support.manager import eventually
from tests.support.openai_stack import MODEL, OpenAIStack

from parrot_gateway.openai.responses.ids import ResponseId

pytestmark = pytest.mark.anyio

SAID = [{"text": "The harbour opens at dawn and "}] * 5
FAULTS: dict[str, list[dict[str, Any]]] = {
    "reset": [*SAID, {"reset": True}],
    "error": [*SAID, {"error": {"message": "out of memory"}}],
    "close": [*SAID, {"close": True}],
    "at-once": [{"reset": True}],
    "refused": [{"status": 400, "body": {"error": {"message": "no"}}}],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_that_breaks_says_so(
    stack: OpenAIStack, client: AsyncOpenAI, http: httpx.AsyncClient, fault: str
) -> None:
    stack.upstream.define(fault, FAULTS[fault])
    body = {"model": MODEL, "input": f"script:{fault}", "stream": True}
    async with http.stream("POST", "/responses", json=body) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]

    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    assert "response.completed" not in {event["type"] for event in events}
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    failed, error = events[-2]["response"], events[-1]["error"]
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == error["message"]
    assert error["type"] == "server_error"
    assert error["may_retry"] is True
    again = await client.responses.retrieve(failed["id"])
    assert (again.status, again.output) == ("failed", [])

    seen: list[str] = []
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012
        async for event in await client.responses.create(model=MODEL, input=f"script:{fault}", stream=True):
            seen.append(event.type)  # noqa: PERF401 - what came before it raises counts
    assert "response.failed" in seen
    assert raised.value.message == error["message"]


@pytest.mark.parametrize("fault", ["reset", "refused"])
async def test_a_response_that_fails_before_its_answer_is_a_status(
    stack: OpenAIStack, client: AsyncOpenAI, fault: str
) -> None:
    stack.upstream.define(fault, FAULTS[fault])
    with pytest.raises(openai.InternalServerError) as raised:
        await client.responses.create(model=MODEL, input=f"script:{fault}")
    assert raised.value.status_code >= 500


async def test_a_background_response_that_fails_is_read_as_failed(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("reset", FAULTS["reset"])
    made = await client.responses.create(model=MODEL, input="script:reset", background=True)

    async def failed() -> bool:
        return (await client.responses.retrieve(made.id)).status == "failed"

    await eventually(failed)
    found = await client.responses.retrieve(made.id)
    assert found.error is not None
    assert found.error.code == "server_error"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_done"


async def test_a_text_that_reached_its_limit_is_incomplete(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    stack.upstream.define("long", [{"text": "on "}, {"text": "and", "finish_reason": "length"}])
    made = await client.responses.create(model=MODEL, input="script:long", max_output_tokens=2)

    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.output_text == "on and"
    assert made.output[0].status == "incomplete"  # type: ignore[union-attr]


async def test_a_gateway_that_stops_leaves_the_response_to_the_others(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    stack.upstream.define("slow", [{"text": "a"}, {"wait_s": 3.0}, {"text": "b"}])
    going = await stack.gateway()
    events: list[Any] = []
    async with AsyncOpenAI(base_url=f"{going.url}/v1", api_key="none", max_retries=0) as first:
        stream = await first.responses.create(model=MODEL, input="script:slow", stream=True)
        with pytest.raises(openai.APIError, match="read on"):  # noqa: PT012
            async for event in stream:
                events.append(event)
                if event.type == "response.output_text.delta":
                    going.stop.set()

    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "a"
    rest = await client.responses.retrieve(
        events[0].response.id, stream=True, starting_after=events[-1].sequence_number
    )
    text += "".join([e.delta async for e in rest if e.type == "response.output_text.delta"])
    assert text == "ab"


async def test_a_silent_stream_is_alive_and_its_comments_are_no_text(
    stack: OpenAIStack, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    silence = {"wait_s": 0.7}
    stack.upstream.define("silent", [silence, {"text": "at "}, silence, {"text": "last"}])
    body: Any = {"model": MODEL, "input": "script:silent", "stream": True}
    async with http.stream("POST", "/responses", json=body) as response:
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"
        lines = [line async for line in response.aiter_lines()]
    first, last = (
        next(place for place, line in enumerate(lines) if f'"delta":"{text}"' in line)
        for text in ("at ", "last")
    )
    assert lines[:first].count(": alive") >= 3
    assert lines[first:last].count(": alive") >= 2

    stream = await client.responses.create(**body)
    text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
    assert text == "at last"


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": ({"input": "x", "frobnicate": 1}, "frobnicate", "invalid_request"),
    "none": ({}, "input", "invalid_request"),
    "empty": ({"input": []}, "input", "invalid_request"),
    "kind": ({"input": 7}, "input", "invalid_request"),
    "role": ({"input": [{"role": "king", "content": "x"}]}, "input[0].role", "invalid_request"),
    "part": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
        "invalid_request",
    ),
    "item": ({"input": [{"type": "computer_call_output"}]}, "input[0]", "invalid_request"),
    "call": ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "invalid_request"),
    "temperature": ({"input": "x", "temperature": 3}, "temperature", "invalid_request"),
    "tokens": ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "invalid_request"),
    "hosted": ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_request"),
    "twice": (
        {"input": "x", "tools": [{"type": "function", "name": "f"}] * 2},
        "tools[1].name",
        "invalid_request",
    ),
    "choice": (
        {
            "input": "x",
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {"type": "function", "name": "g"},
        },
        "tool_choice",
        "invalid_request",
    ),
    "format": ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format", "invalid_request"),
    "conversation": ({"input": "x", "conversation": "conv_1"}, "conversation", "invalid_request"),
    "truncation": ({"input": "x", "truncation": "auto"}, "truncation", "invalid_request"),
    "metadata": ({"input": "x", "metadata": {"k": "v" * 513}}, "metadata", "invalid_request"),
    "background": ({"input": "x", "background": True, "store": False}, "body", "invalid_request"),
    "previous": (
        {"input": "x", "previous_response_id": "resp_1"},
        "previous_response_id",
        "previous_response_not_found",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_request_is_told_with_the_field_that_is_wrong(http: httpx.AsyncClient, case: str) -> None:
    body, param, code = BAD[case]
    answer = await http.post("/responses", json={"model": MODEL, **body})

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert error["message"]


async def test_a_model_nobody_serves_is_not_found_and_leaves_nothing(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    before = len(stack.manager.shell.machine.state.sessions)
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.create(model="gpt-9", input="hi")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert len(stack.manager.shell.machine.state.sessions) == before


@pytest.mark.parametrize("response_id", ["resp_1", "resp_" + "0" * 34, "x", "resp_zz" + "0" * 32])
async def test_an_id_of_no_response_is_not_found(http: httpx.AsyncClient, response_id: str) -> None:
    path = f"/responses/{response_id}"
    answers = [
        await http.get(path),
        await http.get(path, params={"stream": "true"}),
        await http.get(f"{path}/input_items"),
        await http.post(f"{path}/cancel"),
        await http.delete(path),
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert {answer.json()["error"]["type"] for answer in answers} == {"invalid_request_error"}


async def test_what_a_client_writes_in_a_records_place_is_no_response(
    stack: OpenAIStack, http: httpx.AsyncClient
) -> None:
    sessions = f"{stack.gateways[0].url}/v1/sessions"
    session = (await http.post(sessions)).json()["id"]
    for token, value in (("0" * 16, "{}"), ("1" * 16, "[" * 9_999), ("2" * 16, '{"echo": 1}')):
        await http.put(f"{sessions}/{session}/variables/resp-{token}-request", json={"value": value})
        answer = await http.get(f"/responses/resp_{session[1:3]}{session[4:]}{token}")
        assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("text", ["left\0right", "漢字 😀", "\ufeffx", "a\u2028b\x85c"])
async def test_any_text_is_kept_exactly_both_ways(stack: OpenAIStack, client: AsyncOpenAI, text: str) -> None:
    stack.upstream.define("echo", [{"text": text}])
    stream = await client.responses.create(model=MODEL, input=f"{text} script:echo", stream=True)
    events = [event async for event in stream]

    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    final: Any = events[-1]
    assert final.response.output_text == text
    assert (await client.responses.retrieve(final.response.id)).output_text == text
    items: Any = await client.responses.input_items.list(final.response.id)
    assert items.data[0].content[0].text == f"{text} script:echo"
    assert text in stack.prompts()[-1]


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "scripted", "input": "tail \\ud83d"}',
        '{"model": "scripted", "input": [{"role": "user", "content": "\\udc00 head"}]}',
        '{"model": "scripted", "input": "x", "metadata": {"\\ud83d": "x"}}',
    ],
)
async def test_half_a_character_is_refused_where_it_stands(http: httpx.AsyncClient, body: str) -> None:
    answer = await http.post("/responses", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_text"


async def test_what_is_too_large_is_refused_with_its_size(http: httpx.AsyncClient) -> None:
    answer = await http.post("/responses", json={"model": MODEL, "input": "lorem ipsum " * 400_000})

    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("input", "too_large")
    assert "4,800,000" in error["message"]


async def test_a_large_output_comes_whole(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    text = "漢字 and more " * 200
    stack.upstream.define("large", [{"text": text, "repeat": 500}])
    made = await client.responses.create(model=MODEL, input="script:large", stream=True)
    events = [event async for event in made]

    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text * 500
    assert max(len(e.delta) for e in events if e.type == "response.output_text.delta") <= 16_384
    last: Any = events[-1]
    rest = await client.responses.retrieve(last.response.id, stream=True, starting_after=1_000_000)
    left = "".join([e.delta async for e in rest if e.type == "response.output_text.delta"])
    assert (text * 500).endswith(left)
    assert len(left) == len(text) * 500 - (1_000_000 - 3)


async def test_many_at_once_stay_apart(stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI) -> None:
    for number in range(20):
        stack.upstream.define(f"own-{number}", [{"text": f"{number}."}] * 20)

    async def ask(number: int) -> str:
        asked = (client, other)[number % 2]
        made = await asked.responses.create(model=MODEL, input=f"script:own-{number}")
        return made.output_text

    texts = await asyncio.gather(*(ask(number) for number in range(20)))
    assert texts == [f"{number}." * 20 for number in range(20)]


@pytest.mark.parametrize("stored", [True, False])
async def test_when_its_gateway_stops_a_response_goes_on_if_it_can_be_read_and_else_ends(
    stack: OpenAIStack, http: httpx.AsyncClient, stored: bool
) -> None:
    body = {"model": MODEL, "input": "script:endless", "stream": True, "store": stored}
    async with (
        running_gateway(stack.manager.address, stack.nats_url) as leaving,
        httpx.AsyncClient(base_url=f"{leaving.url}/v1", timeout=30) as client,
        client.stream("POST", "/responses", json=body) as response,
    ):
        events = []
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                leaving.stop.set()
    assert events[-1]["type"] == "error"
    assert ("read on" in events[-1]["message"]) is stored
    response_id = events[0]["response"]["id"]
    parsed = ResponseId.parse(response_id)
    assert parsed is not None
    if stored:
        assert (await http.get(f"/responses/{response_id}")).json()["status"] == "in_progress"
        assert (await http.delete(f"/responses/{response_id}")).status_code == 200
    else:

        async def gone() -> bool:
            return (await http.get(f"/sessions/{parsed.session_id}")).status_code == 404

        await eventually(gone)


async def test_a_response_that_can_not_be_waited_for_ends_as_nobody_can_read_it(
    stack: OpenAIStack, http: httpx.AsyncClient
) -> None:
    body = {"model": MODEL, "input": "script:endless", "store": False}
    before = await _open_sessions(http)
    async with (
        running_gateway(stack.manager.address, stack.nats_url) as leaving,
        httpx.AsyncClient(base_url=f"{leaving.url}/v1", timeout=30) as client,
    ):
        asking = asyncio.create_task(client.post("/responses", json=body))

        async def began() -> bool:
            return await _open_sessions(http) > before

        await eventually(began)
        leaving.stop.set()
        answer = await asking
    assert answer.status_code == 503
    assert "send the request again" in answer.json()["error"]["message"]

    async def gone() -> bool:
        return await _open_sessions(http) <= before

    await eventually(gone)


async def _open_sessions(http: httpx.AsyncClient) -> set[str]:
    return {each["id"] for each in (await http.get("/sessions?state=open")).json()["sessions"]}
