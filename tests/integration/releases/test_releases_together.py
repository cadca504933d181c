"""Processes of two releases next to each other work together; of others the manager tells why it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from tests.support.gateway import running_gateway
from tests.support.manager import ManagerUnderTest, eventually, serving
from tests.support.managers import Service
from tests.support.old_bus import OldBus
from tests.support.old_release import Between, OldRelease, between, proxy_address, released, without

from parrot_manager.store.memory import MemoryStore
from parrot_runtime.values.bus import connected
from parrot_runtime.version import parrot_version

pytestmark = pytest.mark.anyio

NEWEST: Final = "0.1"
SILENT: Final = {
    "Registered": "parrot_version",
    "ListManagersResponse": "parrot_version",
    "Registration": "instance_id",
    "Final": "finish_reason",
    "Rollout": "token_texts",
    "SessionStates": "ends",
}
"""Of a release that did not tell its version yet, and some more."""
FAR: Final = "7.3.0"


def last_release() -> OldRelease:
    return OldRelease(released(NEWEST), neighbour())


def one_that_said_less() -> OldRelease:
    return OldRelease(without(released(NEWEST), SILENT), "")


def neighbour() -> str:
    major, minor = map(int, parrot_version().split(".")[:2])
    return f"{major}.{minor - 1 if minor else 1}.9"


@dataclass(slots=True)
class Skewed:
    """All of Parrot, with a manager of another release, as gateway and engine see it."""

    manager: ManagerUnderTest
    link: Between
    bus: OldBus
    http: httpx.AsyncClient


@asynccontextmanager
async def skewed(nats_url: str, release: OldRelease) -> AsyncIterator[Skewed]:
    """The gateway and the engine are of one release, the manager of another."""
    async with AsyncExitStack() as stack:
        address = proxy_address()
        bus = await stack.enter_async_context(connected(nats_url, "manager", 5))
        manager = await stack.enter_async_context(serving(MemoryStore(), bus, advertise=address))
        link = await stack.enter_async_context(between(manager.address, address, release))
        heard = await stack.enter_async_context(OldBus(release, nats_url).listening())
        flags = ("--backend", "sim", "--engine-id", "e-1", "--manager-address", address)
        engine = Service(["parrot_engine", *flags, "--nats-url", heard.url])
        stack.push_async_callback(engine.kill)
        await engine.start()
        gateway = await stack.enter_async_context(
            running_gateway(address, heard.url, "--takeover-wait-s", "0.5")
        )
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=30))
        yield Skewed(manager, link, heard, http)


APPLICATION: Final[dict[str, Any]] = {
    "calls": [
        {
            "name": "first",
            "prompt": "About {{topic}}: {{text}}",
            "placeholders": [
                {"name": "topic", "in_out": "in", "value": "the sea"},
                {
                    "name": "text",
                    "in_out": "out",
                    "semantic_var_id": "a",
                    "sampling": {"max_tokens": 12, "ignore_eos": True, "logprobs": 2, "temperature": 0.5},
                },
            ],
        },
        {
            "name": "second",
            "prompt": "Of {{text}} make {{title}}",
            "placeholders": [
                {"name": "text", "in_out": "in", "semantic_var_id": "a", "transforms": "upper"},
                {
                    "name": "title",
                    "in_out": "out",
                    "semantic_var_id": "b",
                    "sampling": {"max_tokens": 12, "ignore_eos": True},
                },
            ],
        },
    ]
}


async def told(lines: AsyncIterator[str], *words: str) -> None:
    """Returns once a line of a stream has all these words."""
    async for line in lines:
        if all(word in line for word in words):
            return
    raise AssertionError(f"it ended without {words}")


@pytest.mark.parametrize("release", [last_release, one_that_said_less])
async def test_an_application_runs_whichever_side_is_of_the_release_before(
    nats_url: str, release: Any
) -> None:
    async with skewed(nats_url, release()) as parrot:
        await parrot.manager.client.engine_ready("e-1")
        http = parrot.http
        session = (await http.post("/v1/sessions", json={"label": "skew"})).json()["id"]
        path = f"/v1/sessions/{session}"
        async with http.stream("GET", f"{path}/events") as events:
            lines = events.aiter_lines()
            await told(lines, "event: snapshot")
            answer = await http.post(f"{path}/calls", json=APPLICATION)
            assert answer.status_code == 201, answer.text
            await told(lines, '"id":"b"', '"state":"ready"')
        first, second = [(await http.get(f"{path}/variables/{name}")).json() for name in "ab"]
        assert (first["state"], second["state"]) == ("ready", "ready"), (first, second)
        assert "event: done" in (await http.get(f"{path}/variables/b/stream")).text
        graph = (await http.get(path)).json()
        assert [call["state"] for call in graph["calls"]] == ["done", "done"]
        refused = await http.get(f"{path}/variables/none")
        assert (refused.status_code, refused.json()["type"]) == (404, "urn:parrot:problem:not_found")
        assert (await http.get("/v1/sessions")).is_success
        assert (await http.get("/v1/models")).json()["data"]
        assert (await http.delete(path)).status_code in {200, 204}
    assert {"StepDeltas", "SessionStates", "Final", "Rollout"} <= parrot.bus.seen
    asked = {method.rpartition("/")[2] for method in parrot.link.asked}
    assert {"Attach", "SubmitCalls", "GetVariable", "GetSession", "ListManagers"} <= asked


async def test_processes_two_releases_apart_are_told_so_and_are_let_in_once_one_is_replaced(
    nats_url: str,
) -> None:
    async with skewed(nats_url, OldRelease(released(NEWEST), FAR)) as parrot:
        answer = await parrot.http.post("/v1/sessions", json={})
        assert answer.status_code == 503
        detail = answer.json()["detail"]
        assert FAR in detail
        assert parrot_version() in detail
        assert "one release at a time" in detail
        assert await parrot.manager.client.engines() == []
        parrot.link.release = last_release()
        await parrot.manager.client.engine_ready("e-1")

        async def opened() -> bool:
            return (await parrot.http.post("/v1/sessions", json={})).is_success

        await eventually(opened)


def test_what_a_release_does_not_know_is_lost_on_the_way() -> None:
    from parrot_proto.engine.v1 import engine_pb2

    said = engine_pb2.Registered(manager_id="m", parrot_version="0.1.0")
    through = one_that_said_less().known("parrot_proto.engine.v1.Registered", said.SerializeToString())
    assert engine_pb2.Registered.FromString(through) == engine_pb2.Registered(manager_id="m")
