"""What agents say in headers: the requests of one are calls of one session, on either API."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.manager import eventually
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

Headers = dict[str, str]


async def ask(client: AsyncOpenAI, api: str, text: str, headers: Headers, **more: Any) -> str:
    """Makes a request; the session it was made in."""
    if api == "responses":
        made: Any = await client.responses.create(model=MODEL, input=text, extra_headers=headers, **more)
    else:
        made = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], extra_headers=headers, **more
        )
    return str(made.parrot["session_id"])


async def graph(stack: OpenAIStack, session_id: str) -> dict[str, Any]:
    """A session as the API shows it."""
    async with httpx.AsyncClient(base_url=stack.gateways[0].url) as http:
        found: dict[str, Any] = (await http.get(f"/v1/sessions/{session_id}")).json()
        return found


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_the_requests_of_one_agent_are_one_session(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI, api: str
) -> None:
    run = uuid4().hex
    headers = {"X-Dynamo-Session-ID": f"{run}:researcher", "X-Dynamo-Parent-Session-ID": run}
    first = await ask(client, api, "hi", headers)
    final = headers | {"X-Dynamo-Session-Final": "true", "X-Dynamo-Request-Priority": "-1"}
    assert await ask(other, api, "ho", final) == first

    found = await graph(stack, first)
    assert found["label"] == f"agent {run}:researcher of {run}"
    assert found["state"] == "closed"
    assert [call["objective"]["kind"] for call in found["calls"]] == ["latency", "throughput"]
    assert await ask(client, api, "after its end", headers) != first


async def test_both_apis_are_of_one_session(client: AsyncOpenAI, other: AsyncOpenAI) -> None:
    headers = {"session-id": uuid4().hex}
    sessions = {await ask(client, "chat", "hi", headers), await ask(other, "responses", "hi", headers)}
    assert len(sessions) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"X-Session-ID": "RUN"}, {"x-session-id": "RUN"}, True),
        ({"X-Session-ID": "RUN"}, {"X-Session-ID": "RUN-2"}, False),
        ({"X-Dynamo-Session-ID": "RUN", "X-Session-ID": "x"}, {"X-Dynamo-Session-ID": "RUN"}, True),
        ({"X-Claude-Code-Session-Id": "RUN"}, {"X-Claude-Code-Session-Id": "RUN"}, True),
        (
            {"X-Claude-Code-Session-Id": "RUN"},
            {"X-Claude-Code-Session-Id": "RUN", "X-Claude-Code-Agent-Id": "child"},
            False,
        ),
        ({}, {}, False),
    ],
)
async def test_which_headers_name_a_session(
    client: AsyncOpenAI, first: Headers, second: Headers, same: bool
) -> None:
    run = uuid4().hex
    asked = [{name: text.replace("RUN", run) for name, text in one.items()} for one in (first, second)]
    sessions = {await ask(client, "chat", "hi", headers) for headers in asked}
    assert (len(sessions) == 1) is same


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_who_leaves_ends_its_own_call_and_not_the_agents_session(
    stack: OpenAIStack, client: AsyncOpenAI, api: str
) -> None:
    stack.upstream.define("endless", [{"text": "on "}, {"wait_s": 600}])
    headers = {"X-Session-ID": uuid4().hex}
    session_id = await ask(client, api, "hi", headers)
    asking = asyncio.create_task(ask(client, api, "script:endless", headers))

    async def states() -> list[str]:
        return [call["state"] for call in (await graph(stack, session_id))["calls"]]

    async def runs() -> bool:
        return (await states())[1:] == ["running"]

    async def cancelled() -> bool:
        return await states() == ["done", "cancelled"]

    await eventually(runs)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    await eventually(cancelled)
    assert (await graph(stack, session_id))["state"] == "open"
    assert await ask(client, api, "again", headers) == session_id


async def test_a_response_under_a_key_is_found_after_its_agents_session_ended(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    begun = len(stack.prompts())
    headers = {"X-Session-ID": uuid4().hex, "Idempotency-Key": uuid4().hex}
    final = headers | {"X-Dynamo-Session-Final": "true"}
    first = await ask(client, "responses", "hi", final)
    again = await ask(client, "responses", "hi", final)

    assert again == first
    assert len(stack.prompts()) == begun + 1
    with pytest.raises(openai.ConflictError):
        await ask(client, "responses", "ho", final)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_under_a_key_is_found_by_it_whatever_became_of_the_agents_session(
    stack: OpenAIStack, client: AsyncOpenAI, api: str
) -> None:
    chain = {"X-Session-ID": uuid4().hex}
    session_id = await ask(client, api, "hi", chain)
    begun = len(stack.prompts())
    keyed = chain | {"Idempotency-Key": uuid4().hex, "X-Dynamo-Session-Final": "true"}
    first = await ask(client, api, "hi", keyed)

    assert (await graph(stack, session_id))["state"] == "closed"
    assert await ask(client, api, "hi", keyed) == first
    assert len(stack.prompts()) == begun + 1


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_text_goes_from_one_call_to_the_next_on_the_server(
    stack: OpenAIStack, client: AsyncOpenAI, api: str
) -> None:
    headers = {"X-Session-ID": uuid4().hex}
    await ask(client, api, "hi", headers, extra_body={"parrot": {"output": "first"}})
    reading = {"parrot": {"inputs": {"text": "first"}, "output": "second"}}
    await ask(client, api, "Of this: {{text}}!", headers, extra_body=reading)

    assert "Of this: Hello there!" in stack.prompts()[-1]


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X-Session-ID": "a\tb"}, "x-session-id"),
        ({"X-Dynamo-Session-ID": "x" * 300}, "x-dynamo-session-id"),
        ({"X-Dynamo-Request-Priority": "high"}, "x-dynamo-request-priority"),
        ({"X-SLO-TTFT-MS": "soon"}, "x-slo-ttft-ms"),
    ],
)
async def test_a_header_that_says_nothing_is_refused(
    client: AsyncOpenAI, headers: Headers, param: str
) -> None:
    for api in ("responses", "chat"):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(client, api, "hi", headers)
        assert refused.value.status_code in {400, 413}
        assert refused.value.param == param


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_refused_request_is_refused_alike_when_it_is_sent_again(
    client: AsyncOpenAI, api: str
) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    for _ in range(2):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(client, api, "hi", headers, extra_body={"model": "gpt-9"})
        assert refused.value.code == "model_not_found"
