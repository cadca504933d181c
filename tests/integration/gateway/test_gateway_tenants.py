"""Who comes in: keys, tenants, rates; and those who come too slowly. A real manager, its store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.manager import ManagerUnderTest, eventually, serving

from parrot_manager.store.memory import MemoryStore
from parrot_proto.manager.v1 import tenants_pb2 as pb
from parrot_proto.manager.v1.tenants_pb2_grpc import TenantServiceStub
from parrot_runtime import rpc
from parrot_runtime.api_keys import new_api_key, parts_of
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

FLAGS = ("--keys", "--key-recheck-s", "0.3", "--body-s", "0.4")


class Operator:
    """Makes keys and sets limits, as the command line does."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = TenantServiceStub(channel)

    async def key(self, tenant: str) -> str:
        """A new key of a tenant."""
        key = new_api_key()
        parts = parts_of(key)
        assert parts is not None
        await self._stub.CreateKey(pb.CreateKeyRequest(tenant=tenant, id=parts.id, digest=parts.digest))
        return key

    async def revoke(self, key: str) -> None:
        """Makes a key good for nothing."""
        parts = parts_of(key)
        assert parts is not None
        await self._stub.RevokeKey(pb.RevokeKeyRequest(id=parts.id))

    async def limit(self, tenant: str, **limits: int) -> None:
        """Gives a tenant limits."""
        await self._stub.SetLimits(pb.SetLimitsRequest(tenant=tenant, limits=pb.Limits(**limits)))


@pytest.fixture
async def manager(bus: Bus) -> AsyncIterator[ManagerUnderTest]:
    """A real manager."""
    async with serving(MemoryStore(), bus) as made:
        yield made


@pytest.fixture
async def operator(manager: ManagerUnderTest) -> AsyncIterator[Operator]:
    """Whoever runs the server."""
    async with rpc.channel(manager.address) as channel:
        yield Operator(channel)


@pytest.fixture
async def gateways(manager: ManagerUnderTest, nats_url: str) -> AsyncIterator[list[RunningGateway]]:
    """Two gateways that ask for keys."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_gateway(manager.address, nats_url, *FLAGS))
            for _ in range(2)
        ]


def client(gateway: RunningGateway, key: str = "", **headers: str) -> httpx.AsyncClient:
    """A client of a gateway, with a key or without."""
    sent = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=gateway.url, headers={**sent, **headers}, timeout=20)


async def opened(http: httpx.AsyncClient) -> str:
    """A new session's id."""
    answer = await http.post("/v1/sessions")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def call(output: str = "b") -> dict[str, Any]:
    """A call that makes a variable."""
    sampling = {"max_tokens": 8}
    return {
        "prompt": "{{a}}: {{b}}",
        "placeholders": [
            {"name": "a", "in_out": "in", "value": "x"},
            {"name": "b", "in_out": "out", "semantic_var_id": output, "sampling": sampling},
        ],
    }


async def test_without_a_good_key_nothing_is_told(gateways: list[RunningGateway], operator: Operator) -> None:
    good = await operator.key("a")
    for headers in ({}, {"Authorization": f"Bearer {new_api_key()}"}, {"Authorization": f"Basic {good}x"}):
        async with client(gateways[0], **headers) as http:
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/sessions"), ("GET", "/nowhere")):
                answer = await http.request(method, path)
                assert answer.status_code == 401, path
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert answer.json()["type"].endswith(":unauthenticated")
            for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
                assert (await http.get(path)).status_code == 200, path
    async with client(gateways[1], **{"X-API-Key": good}) as http:
        assert (await http.get("/v1/models")).status_code == 200


async def test_the_api_describes_the_key_it_asks_for(
    gateways: list[RunningGateway], manager: ManagerUnderTest, nats_url: str
) -> None:
    async with client(gateways[0]) as http:
        schema = (await http.get("/openapi.json")).json()
    (name,) = schema["security"][0]
    assert schema["components"]["securitySchemes"][name] == {"type": "http", "scheme": "bearer"}
    async with running_gateway(manager.address, nats_url) as keyless, client(keyless) as http:
        assert "security" not in (await http.get("/openapi.json")).json()


async def test_a_refused_request_is_told_so_before_its_body_has_come(gateways: list[RunningGateway]) -> None:
    reader, writer = await connected(gateways[0])
    writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
    assert b"401" in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_ids_of_another_tenant_are_not_there(
    gateways: list[RunningGateway], operator: Operator
) -> None:
    async with (
        client(gateways[0], await operator.key("a")) as a,
        client(gateways[1], await operator.key("b")) as b,
    ):
        session_id = await opened(a)
        answer = await a.post(f"/v1/sessions/{session_id}/calls", json=call())
        assert answer.status_code == 201, answer.text
        call_id = answer.json()["calls"][0]["id"]
        asked: list[tuple[str, str, Any]] = [
            ("GET", "", None),
            ("DELETE", "", None),
            ("GET", "/events", None),
            ("GET", "/trace", None),
            ("POST", "/calls", call()),
            ("POST", f"/calls/{call_id}/cancel", None),
            ("GET", "/variables/b", None),
            ("GET", "/variables/b?wait_s=0", None),
            ("GET", "/variables/b/stream", None),
            ("PUT", "/variables/c", {"value": "x"}),
            ("POST", f"/calls/{call_id}/claim?wait_s=0", {"worker": "w"}),
            ("POST", f"/calls/{call_id}/renew", {"worker": "w"}),
            ("POST", f"/calls/{call_id}/result", {"worker": "w", "outputs": {"b": "x"}}),
        ]
        for method, path, body in asked:
            told = await b.request(method, f"/v1/sessions/{session_id}{path}", json=body)
            other = f"s{session_id[1:3]}-0000000000000000"
            nowhere = await b.request(method, f"/v1/sessions/{other}{path}", json=body)
            assert (told.status_code, nowhere.status_code) == (404, 404), (method, path, told.text)
            assert told.text.replace(session_id, other) == nowhere.text, path
        joining = {"session_id": session_id, "inputs": {"x": "b"}}
        chat = {"model": "m", "messages": [{"role": "user", "content": "{{x}}"}], "parrot": joining}
        assert (await b.post("/v1/chat/completions", json=chat)).status_code == 404
        graph = (await a.get(f"/v1/sessions/{session_id}")).json()
        assert graph["state"] == "open"
        assert graph["calls"][0]["state"] != "cancelled"
        assert (await b.get("/v1/sessions")).json()["sessions"] == []


async def test_the_same_idempotency_key_of_two_tenants_is_two(
    gateways: list[RunningGateway], operator: Operator
) -> None:
    ids = []
    for tenant in ("a", "b", "a"):
        async with client(gateways[0], await operator.key(tenant), **{"Idempotency-Key": "same"}) as http:
            ids.append(await opened(http))
    assert ids[0] == ids[2]
    assert ids[0] != ids[1]


async def test_a_revoked_key_is_good_nowhere_within_a_moment(
    gateways: list[RunningGateway], operator: Operator
) -> None:
    key = await operator.key("a")
    for gateway in gateways:
        async with client(gateway, key) as http:
            assert (await http.get("/v1/models")).status_code == 200
    await operator.revoke(key)
    for gateway in gateways:
        async with client(gateway, key) as http:

            async def refused(http: httpx.AsyncClient = http) -> bool:
                return (await http.get("/v1/models")).status_code == 401

            await eventually(refused, within_s=3)


async def test_a_rate_holds_over_all_gateways_and_tells_when_to_come_again(
    gateways: list[RunningGateway], operator: Operator
) -> None:
    await operator.limit("a", requests_per_second=20)
    key, other = await operator.key("a"), await operator.key("b")
    async with client(gateways[0], key) as one, client(gateways[1], key) as two:
        began = asyncio.get_running_loop().time()
        asked = [http.get("/v1/models") for http in (one, two) for _ in range(60)]
        answers = await asyncio.gather(*asked)
        took_s = asyncio.get_running_loop().time() - began
    passed = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(passed) + len(refused) == 120
    assert 20 <= len(passed) <= 20 + 20 * took_s + 2
    assert all(answer.json()["type"].endswith(":rate_limited") for answer in refused)
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    async with client(gateways[0], other) as http:
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_quota_is_a_429_with_its_reason(gateways: list[RunningGateway], operator: Operator) -> None:
    await operator.limit("a", calls=1, sessions=1)
    async with client(gateways[0], await operator.key("a")) as http:
        session_id = await opened(http)
        answer = await http.post("/v1/sessions")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert "1 open sessions are taken" in answer.json()["detail"]
        path = f"/v1/sessions/{session_id}/calls"
        assert (await http.post(path, json=call())).status_code == 201
        answer = await http.post(path, json=call("d"))
        assert answer.status_code == 429
        assert answer.json()["may_retry"] is True
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 200
        session_id = await opened(http)
        assert (await http.post(f"/v1/sessions/{session_id}/calls", json=call())).status_code == 201


async def test_keys_are_never_logged(
    gateways: list[RunningGateway], operator: Operator, capfd: pytest.CaptureFixture[str]
) -> None:
    key = await operator.key("a")
    wrong = new_api_key()
    for sent in (key, wrong, key + "x"):
        async with client(gateways[0], sent) as http:
            await http.get("/v1/models")
            await http.get(f"/v1/sessions/{sent}")
    told = "".join(capfd.readouterr())
    assert "request" in told
    for sent in (key, wrong):
        assert sent.split("-", 2)[2] not in told


async def connected(gateway: RunningGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection."""
    address = urlsplit(gateway.url)
    return await asyncio.open_connection(address.hostname, address.port)


async def test_a_body_that_never_comes_is_a_408(gateways: list[RunningGateway], operator: Operator) -> None:
    key = await operator.key("a")
    reader, writer = await connected(gateways[0])
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    assert b"408" in await asyncio.wait_for(reader.readline(), 5)
    assert b"request_timeout" in await asyncio.wait_for(reader.readuntil(b"}"), 5)
    writer.close()


async def test_who_says_nothing_is_cut_off(manager: ManagerUnderTest, nats_url: str) -> None:
    async with running_gateway(manager.address, nats_url, "--head-s", "0.2") as gateway:
        reader, writer = await connected(gateway)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_web_pages_are_let_in_by_name_only(manager: ManagerUnderTest, nats_url: str) -> None:
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with running_gateway(manager.address, nats_url, "--keys") as shut, client(shut) as http:
        answer = await http.options("/v1/sessions", headers=preflight)
        assert "access-control-allow-origin" not in answer.headers
    flags = ("--keys", "--cors-origins", "https://app.example, https://other.example")
    async with running_gateway(manager.address, nats_url, *flags) as ajar, client(ajar) as http:
        answer = await http.options("/v1/sessions", headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        refused = await http.get("/v1/models", headers={"Origin": "https://app.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
            401,
            "https://app.example",
        )
        answer = await http.options("/v1/sessions", headers={**preflight, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


async def test_without_keys_a_foreign_page_opens_no_session(manager: ManagerUnderTest, nats_url: str) -> None:
    # What a browser sends without asking first.
    simple = {"Content-Type": "text/plain", "Origin": "https://app.example"}
    async with running_gateway(manager.address, nats_url) as shut, client(shut) as http:
        answer = await http.post("/v1/sessions", headers=simple)
        assert (answer.status_code, answer.json()["field"]) == (403, "Origin")
        chat = await http.post("/v1/chat/completions", headers=simple)
        assert (chat.status_code, chat.json()["error"]["code"]) == (403, "foreign_origin")
    assert not manager.shell.machine.state.sessions
    named = ("--cors-origins", "https://app.example")
    async with running_gateway(manager.address, nats_url, *named) as ajar, client(ajar) as http:
        assert (await http.post("/v1/sessions", headers=simple)).status_code == 201


async def test_without_keys_only_the_loopback_is_served_and_that_is_said_loudly(
    manager: ManagerUnderTest, nats_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Fault, match="no keys are asked for"):
        async with running_gateway(manager.address, nats_url, "--host", "0.0.0.0"):  # noqa: S104 - refused
            pass
    async with running_gateway(manager.address, nats_url) as gateway, client(gateway) as http:
        assert "NO KEYS ARE ASKED FOR" in "".join(capfd.readouterr())
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer anything"})).status_code == 200
        answer = await http.get("/v1/models", headers={"Host": "evil.example"})
        assert (answer.status_code, answer.json()["field"]) == (421, "Host")
