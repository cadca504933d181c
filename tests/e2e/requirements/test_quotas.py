"""R8: quotas are reserved before work begins, count over all gateways and managers, and are settled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.support.manager import eventually
from tests.support.managers import GatewayProcess, Site, site
from tests.support.postgres import temporary_postgres

from parrot_manager.store import schema
from parrot_proto.manager.v1 import tenants_pb2 as pb
from parrot_proto.manager.v1.tenants_pb2_grpc import TenantServiceStub
from parrot_runtime import rpc
from parrot_runtime.api_keys import new_api_key, parts_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

TOKENS = 40
STEP_MS = 60
"""So that a call of 40 tokens takes its two and a half seconds."""
PROMPT = "Count: {{numbers}}"
RESERVED = TOKENS + 1
"""What a call of this prompt reserves: the most its output may have, and a quarter of its text's bytes."""


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    """A database of its own."""
    with temporary_postgres() as server:
        yield server.new_database()


@dataclass
class House:
    """Two managers, an engine, two gateways, and the operator's line to a manager."""

    site: Site
    operator: Any
    gateways: list[GatewayProcess]
    keys: dict[str, str] = field(default_factory=dict)
    counted: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    async def tenant(self, name: str, **limits: int) -> None:
        """A new tenant, with a key."""
        key = new_api_key()
        parts = parts_of(key)
        assert parts is not None
        await self.operator.CreateKey(pb.CreateKeyRequest(tenant=name, id=parts.id, digest=parts.digest))
        await self.operator.SetLimits(pb.SetLimitsRequest(tenant=name, limits=pb.Limits(**limits)))
        self.keys[name] = key

    async def taken(self, name: str) -> pb.Tenant:
        """What a tenant has now."""
        answer: pb.GetTenantResponse = await self.operator.GetTenant(pb.GetTenantRequest(name=name))
        return answer.tenant

    def client(self, name: str, gateway: int) -> httpx.AsyncClient:
        """A client of a gateway."""
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        limits = httpx.Limits(max_connections=60)
        return httpx.AsyncClient(
            base_url=self.gateways[gateway].url, headers=headers, timeout=60, limits=limits
        )

    async def watch(self, name: str) -> None:
        """Notes, again and again, how many calls are in flight: as counted, and as engines run them."""
        while True:
            self.counted.append((await self.taken(name)).calls)
            told = [await client.engines() for client in self.site.clients.values()]
            self.running.append(sum(engine.running for engines in told for engine in engines))
            await asyncio.sleep(0.01)

    async def idle(self, name: str) -> None:
        """Returns once a tenant has nothing in flight."""

        async def none() -> bool:
            return (await self.taken(name)).calls == 0

        await eventually(none, within_s=40)


@pytest.fixture
async def house(database_url: str, nats_url: str) -> AsyncIterator[House]:
    """The whole, up."""
    await schema.migrate(database_url, 10)
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(site(database_url, nats_url))
        for name in ("m-1", "m-2"):
            await made.manager(name, "--upkeep-interval-s", "1")
        await made.shared(m_1=8, m_2=8)
        await made.engine("e-1", "--sim-step-ms", str(STEP_MS))
        channel = await stack.enter_async_context(rpc.channel(made.managers[1].address))
        gateways = [await made.gateway("--keys") for _ in range(2)]
        yield House(made, TenantServiceStub(channel), gateways)


async def opened(http: httpx.AsyncClient) -> str:
    """A new session's id."""
    answer = await http.post("/v1/sessions")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def asked(http: httpx.AsyncClient, session_id: str) -> httpx.Response:
    """The answer to a call of forty tokens."""
    sampling = {"max_tokens": TOKENS, "ignore_eos": True}
    placeholders = [{"name": "numbers", "in_out": "out", "sampling": sampling}]
    body = {"prompt": PROMPT, "placeholders": placeholders}
    return await http.post(f"/v1/sessions/{session_id}/calls", json=body)


async def test_a_quota_is_reserved_global_and_refunded(house: House) -> None:
    await house.tenant("a", calls=10, tokens_per_minute=1_000)
    watching = asyncio.create_task(house.watch("a"))
    async with house.client("a", 0) as one, house.client("a", 1) as two:
        # Sessions of both managers, through both gateways.
        sessions = [await opened(http) for http in (one, two) for _ in range(10)]
        ways = list(itertools.islice(itertools.cycle(itertools.product((one, two), sessions)), 100))
        answers = await asyncio.gather(*(asked(http, session_id) for http, session_id in ways))
        assert sorted(answer.status_code for answer in answers) == [201] * 10 + [429] * 90
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["Retry-After"]) >= 1
                assert "calls in flight" in answer.json()["detail"]
        spent = 1_000 - (await house.taken("a")).token_budget
        assert spent <= 10 * RESERVED
        await house.idle("a")

        # Ten again, and fifty that only the first limit refuses.
        ten = await asyncio.gather(*(asked(two, session_id) for session_id in sessions[:10]))
        assert [answer.status_code for answer in ten] == [201] * 10
        before = (await house.taken("a")).token_budget
        fifty = await asyncio.gather(*(asked(http, session_id) for http, session_id in ways[:50]))
        assert [answer.status_code for answer in fifty] == [429] * 50
        assert all("calls in flight" in answer.json()["detail"] for answer in fifty)
        # They took nothing of the minute's tokens, which would not have been there for them.
        assert RESERVED < before < 50 * RESERVED
        assert (await house.taken("a")).token_budget >= before
        await house.idle("a")
        assert (await asked(one, sessions[0])).status_code == 201
    watching.cancel()
    assert (max(house.counted), max(house.running)) == (10, 10)
    assert (await house.taken("a")).token_budget >= -RESERVED


async def test_the_slots_of_a_gateway_that_died_return_as_its_calls_end(house: House) -> None:
    await house.tenant("b", calls=5)
    async with house.client("b", 0) as one, house.client("b", 1) as two:
        sessions = [await opened(one) for _ in range(5)]
        answers = await asyncio.gather(*(asked(one, session_id) for session_id in sessions))
        assert [answer.status_code for answer in answers] == [201] * 5
        await house.gateways[0].kill()
        assert (await asked(two, sessions[0])).status_code == 429

        async def accepted() -> bool:
            return (await asked(two, sessions[0])).status_code == 201

        await eventually(accepted, within_s=30)
        await house.idle("b")


async def test_a_manager_that_dies_takes_no_slots_along(house: House) -> None:
    await house.tenant("c", calls=8, sessions=20)
    async with house.client("c", 0) as one:
        sessions = [await opened(one) for _ in range(8)]
        answers = await asyncio.gather(*(asked(one, session_id) for session_id in sessions))
        assert [answer.status_code for answer in answers] == [201] * 8
        await house.site.managers[0].kill()
        await house.idle("c")
        for session_id in sessions:
            assert (await one.delete(f"/v1/sessions/{session_id}")).status_code == 200

        async def all_back() -> bool:
            return (await house.taken("c")).sessions == 0

        await eventually(all_back, within_s=20)
        assert (await asked(one, await opened(one))).status_code == 201
