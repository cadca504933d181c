"""Responses under keys are made once; those that are deleted, or not to be stored, are gone."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.manager import eventually
from tests.support.openai_stack import MODEL, OpenAIStack

pytestmark = pytest.mark.anyio

WORDS = "".join(f"w{n:03d} " for n in range(500))


async def test_a_response_under_a_key_is_made_once(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI
) -> None:
    begun = len(stack.prompts())
    headers = {"Idempotency-Key": f"key-{begun}"}
    first = await client.responses.create(model=MODEL, input="hi", extra_headers=headers)
    again = await other.responses.create(model=MODEL, input="hi", extra_headers=headers)

    assert again == first
    assert len(stack.prompts()) == begun + 1
    for other_body in ({}, {"model": "gpt-9"}, {"top_p": 2.0}):
        body: Any = {"model": MODEL, "input": "ho", **other_body}
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(**body, extra_headers=headers)
        assert await client.responses.retrieve(first.id) == first
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model=MODEL, input="ho", extra_headers=headers)


async def test_under_a_key_a_response_that_was_deleted_is_not_made_again(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    begun = len(stack.prompts())
    headers = {"Idempotency-Key": f"deleted-{begun}"}
    made = await client.responses.create(model=MODEL, input="hi", extra_headers=headers)
    await client.responses.delete(made.id)

    for text in ("hi", "ho"):
        with pytest.raises(openai.ConflictError, match="deleted"):
            await client.responses.create(model=MODEL, input=text, extra_headers=headers)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    assert len(stack.prompts()) == begun + 1


@pytest.mark.parametrize("keyed", [True, False])
async def test_what_is_not_stored_is_read_by_nobody_but_answered_again_under_its_key(
    stack: OpenAIStack, client: AsyncOpenAI, keyed: bool
) -> None:
    headers = {"Idempotency-Key": f"unstored-{len(stack.prompts())}"} if keyed else {}
    made = await client.responses.create(model=MODEL, input="hi", store=False, extra_headers=headers)
    again = await client.responses.create(model=MODEL, input="hi", store=False, extra_headers=headers)

    assert (again == made) is keyed
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    session_id = f"s{made.id[5:7]}-{made.id[7:23]}"
    kept = await stack.manager.shell.store.load_session("default", session_id)
    assert (kept is not None) is keyed


async def test_a_client_with_a_key_may_come_back_for_its_response(
    stack: OpenAIStack, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    begun = len(stack.prompts())
    headers = {"Idempotency-Key": f"back-{begun}"}
    body = {"model": MODEL, "input": "script:words", "stream": True}
    async with http.stream("POST", "/responses", json=body, headers=headers) as response:
        await anext(response.aiter_raw())

    again = await client.responses.create(
        model=MODEL, input="script:words", stream=True, extra_headers=headers
    )
    text = "".join([e.delta async for e in again if e.type == "response.output_text.delta"])
    assert text == WORDS
    assert len(stack.prompts()) == begun + 1


async def test_what_is_deleted_is_gone(
    stack: OpenAIStack, client: AsyncOpenAI, other: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    made = await client.responses.create(model=MODEL, input="a secret")
    session_id = f"s{made.id[5:7]}-{made.id[7:23]}"
    assert await stack.manager.shell.store.load_session("default", session_id) is not None

    assert (await http.delete(f"/responses/{made.id}")).json()["deleted"] is True

    assert await stack.manager.shell.store.load_session("default", session_id) is None
    for asked in (client.responses.delete, other.responses.retrieve, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            await asked(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"


async def test_a_response_that_runs_is_deleted_with_what_it_takes_up(
    stack: OpenAIStack, client: AsyncOpenAI
) -> None:
    left, begun = stack.upstream.state.left_early, len(stack.prompts())
    made = await client.responses.create(model=MODEL, input="script:endless", background=True)

    async def runs() -> bool:
        return len(stack.prompts()) > begun and stack.upstream.state.open > 0

    await eventually(runs)
    await client.responses.delete(made.id)

    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)

    async def stopped() -> bool:
        return stack.upstream.state.left_early > left

    await eventually(stopped)
