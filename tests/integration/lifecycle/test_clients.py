"""What clients notice of a gateway that is replaced: nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
from openai import AsyncOpenAI
from tests.support.managers import GatewayProcess, Site, site
from tests.support.passing import Proxy
from tests.support.postgres import temporary_postgres

import parrot as P
from parrot import background
from parrot_manager.store import schema

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TOKENS: Final = 400
STEP_MS: Final = "15"


@P.semantic_function(sampling=P.SamplingConfig(max_gen_length=TOKENS, ignore_tokenizer_eos=True))
def tell(topic: P.Input, text: P.Output) -> None:
    """Of {{topic}} it is told that {{text}}"""


@pytest.fixture
def no_background() -> Iterator[None]:
    """Ends the SDK's loop with the test."""
    yield
    background.stop()


@dataclass(slots=True)
class Rolling:
    """A system with one address, behind which its gateway can be replaced."""

    place: Site
    switch: Proxy
    gateway: GatewayProcess

    async def roll(self) -> None:
        """A new gateway serves before the old one is told to stop, and that ends in order."""
        old, self.gateway = self.gateway, await self.place.gateway()
        self.switch.target = self.gateway.url
        assert await asyncio.wait_for(old.stop(), 30) == 0


@asynccontextmanager
async def rolling(nats_url: str) -> AsyncIterator[Rolling]:
    """The system for the length of the `async with`."""
    with temporary_postgres() as server:
        url = server.new_database()
        await schema.migrate(url, 30)
        async with site(url, nats_url) as place:
            await place.manager("m-1")
            await place.engine("e-1", "--sim-step-ms", STEP_MS)
            gateway = await place.gateway()
            async with Proxy(gateway.url).listening() as switch:
                yield Rolling(place, switch, gateway)


async def test_the_sdk_the_command_and_openais_client_go_on_at_another_gateway(
    nats_url: str, no_background: None
) -> None:
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    async with rolling(nats_url) as system:

        def program() -> tuple[str, str]:
            with P.Session(system.switch.url):
                text = tell("the sea")
                pieces = []
                for piece in text.stream():
                    pieces.append(piece)
                    if len(pieces) == 2:
                        loop.call_soon_threadsafe(began.set)
                return "".join(pieces), str(text.get())

        running = asyncio.create_task(asyncio.to_thread(program))
        await asyncio.wait_for(began.wait(), 60)
        command = [sys.executable, "-m", "parrot_cli", "logs", "last", "--follow"]
        following = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "PARROT_URL": system.switch.url}, stdout=asyncio.subprocess.PIPE
        )
        assert following.stdout is not None
        assert await asyncio.wait_for(following.stdout.readline(), 60)
        async with AsyncOpenAI(base_url=f"{system.switch.url}/v1", api_key="none", timeout=120) as client:
            asking = asyncio.create_task(
                client.chat.completions.create(
                    model="sim",
                    messages=[{"role": "user", "content": "the sea"}],
                    max_tokens=TOKENS,
                    extra_body={"ignore_eos": True},
                )
            )
            await system.roll()
            streamed, value = await asyncio.wait_for(running, 120)
            answer = await asyncio.wait_for(asking, 120)
        said, _ = await asyncio.wait_for(following.communicate(), 120)
    assert streamed == value
    assert answer.choices[0].message.content
    assert following.returncode == 0
    assert value.encode() in said
