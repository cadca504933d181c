"""A manager dies while it serves responses: their streams go on, and what was accepted is finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.support.gateway import running_gateway
from tests.support.managers import site

from parrot_manager.store import schema

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RESPONSES = 12


async def test_streams_go_on_and_what_was_accepted_is_finished(database_url: str, nats_url: str) -> None:
    await schema.migrate(database_url, 10)
    async with site(database_url, nats_url) as made:
        dying = await made.manager("m-1")
        living = await made.manager("m-2")
        await made.shared(m_1=8, m_2=8)
        await made.engine("e-1", "--sim-step-ms", "20")
        addresses = f"{dying.address},{living.address}"
        async with (
            running_gateway(addresses, nats_url) as gateway,
            AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=90) as client,
        ):
            wrote = asyncio.Event()

            async def follow(number: int) -> tuple[str, list[Any]]:
                stream = await client.responses.create(
                    model="sim", input=f"Number {number}", max_output_tokens=150, stream=True
                )
                events: list[Any] = []
                async for event in stream:
                    events.append(event)
                    if event.type == "response.output_text.delta":
                        wrote.set()
                text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
                return text, events

            following = [asyncio.create_task(follow(number)) for number in range(RESPONSES)]
            await wrote.wait()
            await dying.kill()
            for task in following:
                text, events = await task
                assert events[-1].type in {"response.completed", "response.incomplete"}
                numbers = [event.sequence_number for event in events]
                assert numbers == sorted(set(numbers))
                found = await client.responses.retrieve(events[0].response.id)
                assert found == events[-1].response
                assert found.output_text == text
