"""One stack for all tests of /v1/responses: what they ask for stays apart by its ids."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from openai import AsyncOpenAI
from tests.support.openai_stack import OpenAIStack, openai_stack


@pytest.fixture(scope="package")
async def stack(nats_url: str) -> AsyncIterator[OpenAIStack]:
    """Two gateways, a manager, an engine."""
    async with openai_stack(nats_url, gateways=2) as made:
        made.upstream.define("words", [{"text": "w{n:03d} ", "repeat": 500}])
        made.upstream.define("endless", [{"text": "on and "}, {"wait_s": 600}])
        yield made


@pytest.fixture
async def client(stack: OpenAIStack) -> AsyncIterator[AsyncOpenAI]:
    """The official client, of the first gateway."""
    async with AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
async def other(stack: OpenAIStack) -> AsyncIterator[AsyncOpenAI]:
    """The official client, of the second gateway."""
    url = f"{stack.gateways[1].url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
async def http(stack: OpenAIStack) -> AsyncIterator[httpx.AsyncClient]:
    """Any client, of the first gateway."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as made:
        yield made
