"""All of Parrot before a scripted and a simulated model, for all tests of OpenAI's chats and completions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from openai import AsyncOpenAI
from tests.support.managers import Service
from tests.support.openai_stack import SIM, OpenAIStack, openai_stack


@pytest.fixture(scope="package")
async def stack(nats_url: str) -> AsyncIterator[OpenAIStack]:
    """One for all, with an engine that follows scripts and a simulated one."""
    async with openai_stack(nats_url, gateways=2) as made:
        here = ("--manager-address", made.manager.address, "--nats-url", nats_url)
        flags = ("--sim-step-ms", "1", "--context-window-tokens", "4096")
        sim = Service(["parrot_engine", "--engine-id", "e-sim", "--backend", SIM, *flags, *here])
        await sim.start()
        await made.manager.client.engine_ready("e-sim")
        yield made
        await sim.kill()


@pytest.fixture
async def client(stack: OpenAIStack) -> AsyncIterator[AsyncOpenAI]:
    """The official client, of the first gateway."""
    async with AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
async def http(stack: OpenAIStack) -> AsyncIterator[httpx.AsyncClient]:
    """Any client, of the first gateway."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as made:
        yield made
