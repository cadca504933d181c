"""A response is its tenant's alone, whoever knows its id; quotas are told as OpenAI's clients expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI
from tests.support.openai_stack import MODEL, OpenAIStack

from parrot_manager.core.tenants import TenantLimits
from parrot_manager.store.tenants import ApiKey
from parrot_runtime.api_keys import new_api_key, parts_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def door(stack: OpenAIStack) -> str:
    """A gateway that asks for keys."""
    return f"{(await stack.gateway('--keys')).url}/v1"


async def key_of(stack: OpenAIStack, tenant: str) -> str:
    """A new key of a tenant."""
    key = new_api_key()
    parts = parts_of(key)
    assert parts is not None
    await stack.manager.shell.store.tenants.add_key(ApiKey(parts.id, tenant, "", parts.digest, 1))
    return key


@pytest.fixture
async def mine(stack: OpenAIStack, door: str) -> AsyncIterator[AsyncOpenAI]:
    """The client of one tenant."""
    async with AsyncOpenAI(base_url=door, api_key=await key_of(stack, "mine"), max_retries=0) as made:
        yield made


@pytest.fixture
async def theirs(stack: OpenAIStack, door: str) -> AsyncIterator[AsyncOpenAI]:
    """The client of another."""
    async with AsyncOpenAI(base_url=door, api_key=await key_of(stack, "theirs"), max_retries=0) as made:
        yield made


async def test_another_tenants_response_is_not_there(mine: AsyncOpenAI, theirs: AsyncOpenAI) -> None:
    made = await mine.responses.create(model=MODEL, input="a secret", background=True)

    for asked in (theirs.responses.retrieve, theirs.responses.cancel, theirs.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await asked(made.id)
    with pytest.raises(openai.NotFoundError):
        await theirs.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        await theirs.responses.input_items.list(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await theirs.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    item: Any = {"type": "item_reference", "id": made.id.replace("resp_", "msg_") + "in0"}
    with pytest.raises(openai.BadRequestError):
        await theirs.responses.create(model=MODEL, input=[item])
    joining = {"parrot": {"session_id": f"s{made.id[5:7]}-{made.id[7:23]}"}}
    with pytest.raises(openai.NotFoundError):
        await theirs.responses.create(model=MODEL, input="hi", extra_body=joining)
    assert (await mine.responses.retrieve(made.id)).id == made.id


async def test_keys_and_agents_of_two_tenants_are_not_the_same(
    mine: AsyncOpenAI, theirs: AsyncOpenAI
) -> None:
    headers = {"Idempotency-Key": uuid4().hex, "X-Session-ID": uuid4().hex}
    made: Any = [
        await client.responses.create(model=MODEL, input="hi", extra_headers=headers)
        for client in (mine, theirs)
    ]
    assert made[0].parrot["session_id"] != made[1].parrot["session_id"]


async def test_without_a_key_nobody_comes_in(door: str) -> None:
    async with AsyncOpenAI(base_url=door, api_key=new_api_key(), max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.responses.create(model=MODEL, input="hi")
        with pytest.raises(openai.AuthenticationError) as unlisted:
            await stranger.models.list()
    assert refused.value.code == unlisted.value.code == "invalid_api_key"


async def test_a_quota_that_is_used_up_is_told_and_frees_itself(stack: OpenAIStack, door: str) -> None:
    stack.upstream.define("endless", [{"text": "on "}, {"wait_s": 600}])
    key = await key_of(stack, "small")
    await stack.manager.shell.store.tenants.set_limits("small", TenantLimits(calls=1))
    async with AsyncOpenAI(base_url=door, api_key=key, max_retries=0) as client:
        going = await client.responses.create(model=MODEL, input="script:endless", background=True)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.responses.create(model=MODEL, input="hi")
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["Retry-After"]) >= 1

        await client.responses.cancel(going.id)
        made = await client.responses.create(model=MODEL, input="script:default")
        assert made.output_text == "Hello there"
