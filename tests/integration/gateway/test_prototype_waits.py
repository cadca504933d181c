"""The prototype's wire API before a manager: any gateway does, and no wait outlives gateway or client."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway, running_gateway

from parrot_gateway.prototype import variables
from parrot_gateway.prototype.identity import session_id_of
from parrot_proto.manager.v1 import manager_pb2

pytestmark = pytest.mark.anyio

CALL = {
    "template": "Say {{a}}: {{b}}",
    "parameters": [{"name": "a", "is_output": False, "value": "x"}, {"name": "b", "is_output": True}],
}


async def pending(http: httpx.AsyncClient) -> tuple[int, str]:
    """A session's number, and the id of an output in it that nobody has made yet."""
    session: int = (await http.post("/v1/session", json={"api_key": "1"})).json()["session_id"]
    accepted = await http.post("/v1/semantic_call", json={"session_id": session, **CALL})
    return session, accepted.json()["param_info"][1]["var_id"]


def reading(http: httpx.AsyncClient, session: int, variable_id: str) -> asyncio.Task[httpx.Response]:
    body: dict[str, Any] = {"session_id": session, "session_auth": "1", "criteria": "latency"}
    return asyncio.create_task(http.request("GET", f"/v1/semantic_var/{variable_id}", json=body))


def kinds(fake: FakeManager) -> list[int]:
    """What the manager heard that its readers want."""
    return [criteria.kind for criteria in fake.criteria]


def waits() -> int:
    """How many waits for a value there are in the gateways of this process."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(coroutine.__qualname__ == "_content" for coroutine in coroutines)


async def test_a_value_is_waited_for_at_any_gateway_with_the_readers_criteria(
    manager: tuple[FakeManager, str], fake: FakeManager, http: httpx.AsyncClient, nats_url: str
) -> None:
    session, variable_id = await pending(http)
    async with (
        running_gateway(manager[1], nats_url, "--recheck-s", "0.1") as other,
        httpx.AsyncClient(base_url=other.url, timeout=30) as elsewhere,
    ):
        waiting = [reading(client, session, variable_id) for client in (http, elsewhere)]
        await eventually(lambda: kinds(fake).count(manager_pb2.OBJECTIVE_KIND_LATENCY) == 2)
        fake.finish(session_id_of(str(session)), variable_id, "made")
        assert [(await each).json() for each in waiting] == 2 * [{"content": "made"}]
    made = fake.sessions[session_id_of(str(session))].session
    assert (made.lazy, made.criteria.kind) == (True, manager_pb2.OBJECTIVE_KIND_THROUGHPUT)


async def test_what_waits_for_a_variable_that_nobody_sets_is_told_so(
    http: httpx.AsyncClient, fake: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variables, "PATIENCE_S", 0.05)
    session, unrelated = await pending(http)
    unset = (await http.post("/v1/semantic_var", json={"session_id": session, "var_name": "x"})).json()[
        "var_id"
    ]
    made: list[str] = [unset]
    for _ in range(2):
        parameters = [{"name": "a", "is_output": False, "var_id": made[-1]}, {"name": "b", "is_output": True}]
        body = {"session_id": session, "template": "Say {{a}}: {{b}}", "parameters": parameters}
        accepted = await http.post("/v1/semantic_call", json=body)
        made.append(accepted.json()["param_info"][1]["var_id"])
    for variable_id in made:
        answer = await reading(http, session, variable_id)
        assert (answer.status_code, answer.json()["semantic_var_id"]) == (400, unset)
        assert answer.json()["type"].endswith("unproduced_variable")
    # What does not wait for it is waited for.
    waiting = reading(http, session, unrelated)
    asked = len(fake.criteria)
    await eventually(lambda: len(fake.criteria) > asked + 2)
    fake.finish(session_id_of(str(session)), unrelated, "made")
    assert (await waiting).json() == {"content": "made"}


async def test_a_gateway_that_stops_tells_those_who_wait_to_ask_again(
    fake: FakeManager, gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    session, variable_id = await pending(http)
    waiting = reading(http, session, variable_id)
    await eventually(lambda: fake.criteria)
    gateway.stop.set()
    answer = await waiting
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"] == f"unavailable: {answer.json()['detail']}"
    await gateway.task


async def test_a_wait_ends_with_the_client_that_waits(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    session, variable_id = await pending(http)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as leaving:
        waiting = reading(leaving, session, variable_id)
        await eventually(waits)
        waiting.cancel()
        await asyncio.wait({waiting})
    await eventually(lambda: not waits())
