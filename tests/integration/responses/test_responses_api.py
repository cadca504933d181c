"""/v1/responses as OpenAI's own client uses it, on all of Parrot before a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.manager import eventually
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

Events = list[dict[str, Any]]
WORDS = "".join(f"w{n:03d} " for n in range(500))


async def events_of(response: httpx.Response) -> Events:
    """The events of a stream, to its end."""
    made: Events = []
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            made.append(json.loads(line.removeprefix("data: ")))
    return made


async def followed(http: httpx.AsyncClient, response_id: str, **params: Any) -> Events:
    """The events of a response that is read again."""
    path = f"/responses/{response_id}"
    async with http.stream("GET", path, params={"stream": "true", **params}) as response:
        assert response.status_code == 200, await response.aread()
        return await events_of(response)


def text_of(events: Events) -> str:
    """The text that deltas add up to."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def test_a_response_is_what_the_model_said_and_is_read_again_anywhere(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    made = await client.responses.create(
        model=MODEL, input="Say hello.", instructions="Be brief.", metadata={"run": "7"}, max_output_tokens=9
    )

    assert (made.output_text, made.status, made.model) == ("Hello there", "completed", MODEL)
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens > 0
    assert (made.metadata, made.instructions, made.max_output_tokens) == ({"run": "7"}, "Be brief.", 9)
    assert "Be brief." in stack.prompts()[-1]
    assert stack.prompts()[-1].index("Be brief.") < stack.prompts()[-1].index("Say hello.")
    again = await other.responses.retrieve(made.id)
    assert again == made
    items = await other.responses.input_items.list(made.id)
    assert [(item.type, item.id[:4]) for item in items.data] == [("message", "msg_")]


async def test_its_session_ends_with_it(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)

    session_id = f"s{made.id[5:7]}-{made.id[7:23]}"
    await eventually(lambda: closed(stack, session_id))


async def closed(stack: OpenAIStack, session_id: str) -> bool:
    """Whether a session has come to its good end."""
    async with httpx.AsyncClient() as http:
        found = await http.get(f"{stack.gateways[0].url}/v1/sessions/{session_id}")
        return bool(found.json()["state"] == "closed")


async def test_a_stream_tells_the_response_from_its_beginning_to_its_end(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in stream]

    assert [event.type for event in events if event.type != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello there"
    assert last.response == await client.responses.retrieve(last.response.id)


@pytest.mark.parametrize("background", [True, False])
async def test_told_again_elsewhere_a_response_is_told_alike(
    stack: OpenAIStack, http: httpx.AsyncClient, background: bool
) -> None:
    stack.upstream.define("slowly", [{"text": "some "}, {"wait_s": 0.05}, {"text": "text"}])
    body = {"model": MODEL, "input": "script:slowly", "stream": True, "background": background}
    async with http.stream("POST", "/responses", json=body) as response:
        live = await events_of(response)

    async with httpx.AsyncClient(base_url=f"{stack.gateways[1].url}/v1") as elsewhere:
        again = await followed(elsewhere, live[0]["response"]["id"])

    assert text_of(again) == text_of(live) == "some text"
    others = [event for event in live if event["type"] != "response.output_text.delta"]
    assert [event for event in again if event["type"] != "response.output_text.delta"] == others


async def test_the_clients_own_accumulation_agrees(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="script:words") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()

    assert final.output_text == WORDS


async def test_a_conversation_goes_on_from_any_response_of_it(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    stack.upstream.define("second", [{"text": "The second."}])
    first = await client.responses.create(model=MODEL, input="One?", instructions="Only once.")
    second = await other.responses.create(
        model=MODEL, input="Two, script:second?", previous_response_id=first.id
    )
    third = await client.responses.create(model=MODEL, input="Three?", previous_response_id=second.id)
    beside = await client.responses.create(model=MODEL, input="Beside?", previous_response_id=first.id)

    prompt = stack.prompts()[-2]
    said = ["One?", "Hello there", "Two, script:second?", "The second.", "Three?"]
    assert sorted(said, key=prompt.index) == said
    assert "Only once." not in prompt
    assert "The second." not in stack.prompts()[-1]
    listed = await client.responses.input_items.list(third.id, order="asc")
    assert len(listed.data) == len({item.id for item in listed.data}) == 5
    assert third.previous_response_id == second.id
    assert beside.previous_response_id == first.id


async def test_items_are_listed_in_pages(client: AsyncOpenAI) -> None:
    texts = [f"text {n}" for n in range(7)]
    made = await client.responses.create(
        model=MODEL, input=[{"role": "user", "content": text} for text in texts]
    )

    pages: list[Any] = [
        item async for item in client.responses.input_items.list(made.id, order="asc", limit=3)
    ]

    assert [item.content[0].text for item in pages] == texts


async def test_an_item_may_be_named_by_its_id(stack: OpenAIStack, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="One?")
    assert first.output[0].id is not None
    await client.responses.create(
        model=MODEL,
        input=[{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "Two?"}],
    )
    assert "Hello there" in stack.prompts()[-1]

    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": "msg_1"}])
    assert refused.value.param == "input[0].id"


async def test_a_background_response_goes_on_without_its_client(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    made = await client.responses.create(model=MODEL, input="script:words", background=True)
    assert made.status in {"queued", "in_progress"}
    assert made.output == []

    async def completed() -> bool:
        return (await other.responses.retrieve(made.id)).status == "completed"

    await eventually(completed)
    assert (await other.responses.retrieve(made.id)).output_text == WORDS


async def test_a_stream_goes_on_at_another_gateway_after_any_event(
    client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    stream = await client.responses.create(model=MODEL, input="script:words", background=True, stream=True)
    events = [event async for event in stream]
    response_id = events[0].response.id if events[0].type == "response.created" else ""
    last_number = events[-1].sequence_number

    for after in (0, 1, 9, 10, 11, 99, 100, 1998, 1999, last_number - 2, last_number - 1):
        text = "".join(upto(e, after) for e in events if e.type == "response.output_text.delta")
        rest = await other.responses.retrieve(response_id, stream=True, starting_after=after)
        numbers = []
        async for event in rest:
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == WORDS, after
        assert numbers == sorted(set(numbers))
        assert numbers[0] > after
        assert numbers[-1] == last_number


def upto(event: Any, number: int) -> str:
    """The characters of a delta that have this number or one before it."""
    first = event.sequence_number - len(event.delta) + 1
    return str(event.delta[: max(0, number + 1 - first)])


async def test_a_number_that_no_event_has_is_refused(
    stack: OpenAIStack, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    made = await client.responses.create(model=MODEL, input="hi")
    path = f"/responses/{made.id}"

    for params in ({"starting_after": "9999999"}, {"starting_after": "-1"}, {"starting_after": "abc"}):
        answer = await http.get(path, params={"stream": "true", **params})
        assert answer.status_code == 400, params
        assert answer.json()["error"]["param"] == "starting_after"
    whole = await followed(http, made.id)
    assert await followed(http, made.id, starting_after=whole[-1]["sequence_number"]) == []


async def test_a_cancelled_response_frees_its_engine_and_stays_cancelled(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    left, begun = stack.upstream.state.left_early, len(stack.prompts())
    made = await client.responses.create(model=MODEL, input="script:endless", background=True)

    async def runs() -> bool:
        asked = len(stack.prompts()) > begun and stack.upstream.state.open > 0
        return asked and (await client.responses.retrieve(made.id)).status == "in_progress"

    await eventually(runs)
    cancelled = await other.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert await client.responses.cancel(made.id) == cancelled
    await eventually(lambda: left_early(stack, left + 1))
    events = await followed(http, made.id)
    assert events[-1]["type"] == "error"
    assert events[-1]["code"] == "cancelled"
    assert "response.completed" not in {event["type"] for event in events}


async def test_only_a_background_response_is_cancelled_by_its_id(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi")

    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_ends_its_response(
    stack: OpenAIStack, http: httpx.AsyncClient, streamed: bool
) -> None:
    left, begun = stack.upstream.state.left_early, len(stack.prompts())

    async def runs() -> bool:
        return len(stack.prompts()) > begun and stack.upstream.state.open > 0

    body = {"model": MODEL, "input": "script:endless", "stream": streamed}
    asking = asyncio.create_task(http.post("/responses", json=body))
    await eventually(runs)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    await eventually(lambda: left_early(stack, left + 1))


async def left_early(stack: OpenAIStack, count: int) -> bool:
    """Whether so many of the model's answers were given up."""
    return stack.upstream.state.left_early >= count
