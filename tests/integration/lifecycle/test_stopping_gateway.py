"""A gateway that stops while no manager answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.support.gateway import running_gateway
from tests.support.manager import eventually, serving

from parrot_manager.store.memory import MemoryStore
from parrot_runtime.values.bus import connected

pytestmark = pytest.mark.anyio


async def test_a_request_that_waits_for_a_manager_is_answered_when_its_gateway_stops(nats_url: str) -> None:
    async with connected(nats_url, "manager", 5) as bus:
        manager = serving(MemoryStore(), bus)
        address = (await manager.__aenter__()).address
        # So long a request waits for a manager; so long those under way have, once the gateway stops.
        patience = ("--takeover-wait-s", "600", "--stop-s", "60")
        async with (
            running_gateway(address, nats_url, *patience) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=90) as http,
        ):
            assert (await http.post("/v1/sessions", json={})).is_success
            await manager.__aexit__(None, None, None)

            async def away() -> bool:
                return (await http.get("/readyz")).status_code == 503

            await eventually(away, within_s=30)
            waiting = [asyncio.create_task(http.post("/v1/sessions", json={})) for _ in range(3)]
            done, _ = await asyncio.wait(waiting, timeout=1)
            assert not done
            gateway.stop.set()
            answers = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            await asyncio.wait_for(gateway.task, 30)
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["type"] for answer in answers} == {"urn:parrot:problem:unavailable"}
