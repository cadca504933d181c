"""Where an agent's requests are made: only those that were found good open or join its session."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI
from tests.integration.responses.test_agents import ask, graph
from tests.support.openai_stack import OpenAIStack

pytestmark = pytest.mark.anyio

BAD: dict[str, dict[str, dict[str, Any]]] = {
    "by its body": {
        "chat": {"stream_options": {"include_usage": True}},
        "responses": {"previous_response_id": "resp_1"},
    },
    "by what it joins": {api: {"parrot": {"output": "no id!"}} for api in ("chat", "responses")},
    "by the manager": {api: {"model": "gpt-9"} for api in ("chat", "responses")},
}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("why", BAD)
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_that_is_refused_opens_no_session(
    stack: OpenAIStack, client: AsyncOpenAI, api: str, why: str, keyed: bool
) -> None:
    before = set(stack.manager.shell.machine.state.sessions)
    headers = {"X-Dynamo-Session-ID": uuid4().hex, "X-Dynamo-Session-Final": "true"}
    headers |= {"Idempotency-Key": uuid4().hex} if keyed else {}
    for _ in range(2):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(client, api, "hi", headers, extra_body=BAD[why][api])
        assert refused.value.status_code in {400, 404}

    assert set(stack.manager.shell.machine.state.sessions) <= before


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_that_is_refused_takes_no_other_ones_session_along(
    client: AsyncOpenAI, other: AsyncOpenAI, api: str
) -> None:
    for _ in range(5):
        headers = {"X-Session-ID": uuid4().hex}
        named = {"parrot": {"output": "draft"}}
        good = [ask(client, api, "hi", headers, extra_body=named), ask(other, api, "ho", headers)]
        bad = [ask(one, api, "no", headers, extra_body={"model": "gpt-9"}) for one in (client, other)]
        told = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert [type(one) for one in told] == [str, str, openai.NotFoundError, openai.NotFoundError]


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_under_a_key_opens_no_session_for_its_agent(
    stack: OpenAIStack, client: AsyncOpenAI, api: str
) -> None:
    run = uuid4().hex
    await ask(client, api, "hi", {"X-Session-ID": run, "Idempotency-Key": uuid4().hex})
    labels = [one.session.label for one in stack.manager.shell.machine.state.sessions.values()]
    assert f"agent {run}" not in labels


async def test_what_is_not_stored_leaves_nothing_in_its_agents_session(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    headers = {"X-Dynamo-Session-ID": uuid4().hex}
    chain = await ask(client, "responses", "hi", headers)
    apart = await ask(client, "responses", "a secret", headers, store=False)

    assert await stack.manager.shell.store.load_session("default", apart) is None
    final = headers | {"X-Dynamo-Session-Final": "true"}
    await ask(client, "responses", "a secret", final, store=False)
    found = await graph(stack, chain)
    assert len(found["calls"]) == 1
    assert found["state"] == "closed"


async def test_a_response_that_makes_a_variable_is_the_same_when_it_is_sent_again(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    begun = len(stack.prompts())
    headers = {"X-Session-ID": uuid4().hex}

    async def make(by: AsyncOpenAI, text: str, **more: Any) -> Any:
        joined = {"parrot": {"output": "draft"}}
        return await by.responses.create(
            model="scripted", input=text, extra_headers=headers, extra_body=joined, **more
        )

    first, twin = await asyncio.gather(make(client, "Write."), make(other, "Write."))
    assert first == twin == await make(client, "Write.")
    assert len(stack.prompts()) == begun + 1
    for more in ({"metadata": {"a": "b"}}, {"temperature": 0.5}, {"previous_response_id": first.id}):
        with pytest.raises(openai.ConflictError) as refused:
            await make(client, "Write.", **more)
        assert refused.value.code == "duplicate_producer"
