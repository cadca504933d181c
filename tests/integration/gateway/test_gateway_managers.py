"""A gateway before several managers: whom it asks, and what a client notices when one goes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.support.fake_manager import FakeManager, running_manager
from tests.support.gateway import running_gateway

from parrot_gateway import managers
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, ids
from parrot_runtime.errors import Fault, Kind

pytestmark = pytest.mark.anyio
CALL = {
    "prompt": "{{a}} makes {{b}}",
    "placeholders": [{"name": "a", "in_out": "in", "value": "x"}, {"name": "b", "in_out": "out"}],
}


class Pair:
    """Two managers that hold all sessions together; they divide the shards as the test says."""

    def __init__(self) -> None:
        self.fakes: list[FakeManager] = []
        self.addresses: list[str] = []
        self.exits: list[AsyncExitStack] = []

    async def start(self) -> None:
        for _ in range(2):
            stack = AsyncExitStack()
            fake, address = await stack.enter_async_context(running_manager())
            self.fakes.append(fake)
            self.addresses.append(address)
            self.exits.append(stack)
        # What is committed, whoever asks.
        self.fakes[1].sessions = self.fakes[0].sessions
        self.divide(set(range(8)))

    def divide(self, of_first: set[int]) -> None:
        of_second = set(range(ids.SHARDS)) - of_first
        known = [
            pb.ManagerInfo(id=f"m-{place}", address=address, shards=sorted(shards))
            for place, (address, shards) in enumerate(zip(self.addresses, (of_first, of_second), strict=True))
        ]
        for fake, shards in zip(self.fakes, (of_first, of_second), strict=True):
            fake.shards, fake.managers = shards, known


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.start()
    yield made
    for stack in made.exits:
        await stack.aclose()


@pytest.fixture
async def http(pair: Pair, nats_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that was given the first manager's address only."""
    async with (
        running_gateway(pair.addresses[0], nats_url) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as client,
    ):
        yield client


async def new_session(http: httpx.AsyncClient, **headers: str) -> str:
    answer = await http.post("/v1/sessions", headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def sessions_of_both(http: httpx.AsyncClient) -> tuple[str, str]:
    """A session of each manager's."""
    found: dict[bool, str] = {}
    while len(found) < 2:
        session_id = await new_session(http)
        found[ids.shard_of(session_id) < 8] = session_id
    return found[True], found[False]


def assert_problem(answer: httpx.Response, kind: Kind, field: str = "") -> None:
    assert answer.status_code == kind.http, answer.text
    assert answer.json()["type"].endswith(f":{kind.type}")
    assert answer.json().get("field", "") == field


async def test_each_session_is_asked_for_where_it_is(http: httpx.AsyncClient, pair: Pair) -> None:
    for session_id, fake in zip(await sessions_of_both(http), pair.fakes, strict=True):
        assert (await http.post(f"/v1/sessions/{session_id}/calls", json=CALL)).status_code == 201
        assert [batch.session_id for batch in fake.batches] == [session_id]


async def test_a_session_that_moves_is_followed(http: httpx.AsyncClient, pair: Pair) -> None:
    first, _ = await sessions_of_both(http)
    pair.divide(set())
    assert (await http.post(f"/v1/sessions/{first}/calls", json=CALL)).status_code == 201
    assert [batch.session_id for batch in pair.fakes[1].batches] == [first]


async def test_connections_to_managers_that_are_no_more_are_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managers, "LOOK_AGAIN_S", 0.0)
    asked = managers.Managers(pair.addresses[:1], patience_s=5)
    try:
        async with asyncio.timeout(10):
            while asked.connected != set(pair.addresses):
                await asked.ask("ListModels", pb.ListModelsRequest(), 5, shard=12)
            pair.divide(set(range(ids.SHARDS)))
            pair.fakes[0].managers = pair.fakes[0].managers[:1]
            while asked.connected != set(pair.addresses[:1]):
                await asked.ask("ListModels", pb.ListModelsRequest(), 5, shard=3)
    finally:
        await asked.close()


async def test_a_request_waits_for_whoever_takes_a_dead_managers_sessions_over(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    first, _ = await sessions_of_both(http)
    await pair.exits[0].aclose()
    asking = asyncio.create_task(http.post(f"/v1/sessions/{first}/calls", json=CALL))
    await asyncio.wait([asking], timeout=0.3)
    assert not asking.done()
    pair.divide(set())
    assert (await asking).status_code == 201


async def test_a_request_nobody_takes_is_a_503_that_says_when_to_try_again(pair: Pair, nats_url: str) -> None:
    for fake in pair.fakes:
        fake.shards = set()
    async with (
        running_gateway(pair.addresses[0], nats_url, "--takeover-wait-s", "0.2") as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as client,
    ):
        answer = await client.post("/v1/sessions")
    assert_problem(answer, errors.UNAVAILABLE)
    assert answer.headers["retry-after"] == "1"


async def test_what_was_done_unheard_is_done_once(http: httpx.AsyncClient, pair: Pair) -> None:
    for fake in pair.fakes:
        fake.unheard = 1
    first, second = await sessions_of_both(http)
    assert len(pair.fakes[0].sessions) >= 2
    for session_id, fake in zip((first, second), pair.fakes, strict=True):
        fake.unheard = 1
        answer = await http.post(f"/v1/sessions/{session_id}/calls", json=CALL)
        assert [call["id"] for call in answer.json()["calls"]] == ["c-1"]
        fake.unheard = 1
        put = await http.put(f"/v1/sessions/{session_id}/variables/set", json={"value": "once"})
        assert (put.status_code, put.json()["state"]) == (200, "ready")
        assert_problem(
            await http.put(f"/v1/sessions/{session_id}/variables/set", json={"value": "once"}),
            errors.VARIABLE_ALREADY_SET,
        )


async def test_a_manager_that_lost_its_sessions_without_knowing_it_is_not_asked_for_ever(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    first, _ = await sessions_of_both(http)
    known = pair.fakes[0].shards, pair.fakes[0].managers
    pair.divide(set())
    pair.fakes[0].shards, pair.fakes[0].managers = known
    pair.fakes[0].cut_off = True
    answer = await http.post(f"/v1/sessions/{first}/calls", json=CALL)
    assert answer.status_code == 201, answer.text
    assert [batch.session_id for batch in pair.fakes[1].batches] == [first]


async def test_a_manager_that_fails_is_not_believed_before_another_is_asked(
    pair: Pair, nats_url: str
) -> None:
    everything = set(range(ids.SHARDS))
    pair.divide(everything)
    stale, heir = pair.fakes
    stale.managers = stale.managers[:1]
    async with (
        running_gateway(",".join(pair.addresses), nats_url) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        session_id = await new_session(http)
        heir.shards = everything
        heir.managers = [pb.ManagerInfo(id="m-1", address=pair.addresses[1], shards=sorted(everything))]
        stale.refuse = Fault(errors.UNAVAILABLE, "the database can't be reached")
        answer = await http.post(f"/v1/sessions/{session_id}/calls", json=CALL)
        assert answer.status_code == 201, answer.text
        assert [batch.session_id for batch in heir.batches] == [session_id]


async def test_who_waits_at_a_manager_that_lost_the_session_gets_the_value_from_the_other(
    pair: Pair, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managers, "LOOK_AGAIN_S", 0.1)
    async with (
        running_gateway(pair.addresses[0], nats_url, "--recheck-s", "0.1") as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        first, _ = await sessions_of_both(http)
        batch = (await http.post(f"/v1/sessions/{first}/calls", json=CALL)).json()
        output = batch["calls"][0]["placeholders"][1]["semantic_var_id"]
        known = pair.fakes[0].shards, pair.fakes[0].managers
        pair.divide(set())
        stale = pair.fakes[0]
        stale.shards, stale.managers = known
        stale.sessions, stale.cut_off = copy.deepcopy(stale.sessions), True
        pair.fakes[1].finish(first, output, "made elsewhere")
        got = (await http.get(f"/v1/sessions/{first}/variables/{output}?wait_s=10")).json()
        assert (got["state"], got["value"]) == ("ready", "made elsewhere")


async def test_while_every_manager_is_cut_off_what_is_known_can_be_read_and_writes_are_refused_at_once(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    sessions = await sessions_of_both(http)
    for fake in pair.fakes:
        fake.cut_off = True
    for session_id, fake in zip(sessions, pair.fakes, strict=True):
        before = fake.refused
        assert_problem(
            await http.post(f"/v1/sessions/{session_id}/calls", json=CALL),
            errors.UNAVAILABLE,
        )
        # The write, and who serves what: asked for once, and once ahead of time at most.
        assert 2 <= fake.refused - before <= 3
    for session_id in sessions:
        assert (await http.get(f"/v1/sessions/{session_id}")).status_code == 200


async def test_a_value_that_is_stored_while_its_session_moves_is_the_writers_own(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    first, _ = await sessions_of_both(http)
    path = f"/v1/sessions/{first}/variables/set"
    pair.fakes[0].moves = 1
    put = await http.put(path, json={"value": "once"})
    assert (put.status_code, put.json()["state"]) == (200, "ready")
    assert_problem(await http.put(path, json={"value": "once"}), errors.VARIABLE_ALREADY_SET)
    other = f"/v1/sessions/{first}/variables/other"
    await http.put(other, json={"value": "another's"})
    pair.fakes[0].shards = set()
    moving = asyncio.create_task(http.put(other, json={"value": "mine"}))
    await asyncio.wait([moving], timeout=0.1)
    pair.divide(set())
    assert_problem(await moving, errors.VARIABLE_ALREADY_SET)


async def test_a_key_makes_one_session_and_one_batch_with_the_same_ids(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    key = {"Idempotency-Key": "night-17"}
    session_id = await new_session(http, **key)
    assert await new_session(http, **key) == session_id
    path = f"/v1/sessions/{session_id}/calls"
    answers = [await http.post(path, json=CALL, headers=key) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert sum(len(fake.batches) for fake in pair.fakes) == 1
    other = {**CALL, "name": "another"}
    assert_problem(
        await http.post(path, json=other, headers=key), errors.IDEMPOTENCY_CONFLICT, "Idempotency-Key"
    )
    two = [(await http.post(path, json=CALL, headers={"Idempotency-Key": name})).json() for name in "ab"]
    assert two[0]["calls"][0]["placeholders"] != two[1]["calls"][0]["placeholders"]


@pytest.mark.parametrize("key", ["", "two words", "x" * 201])
async def test_a_key_that_is_none_is_refused(http: httpx.AsyncClient, key: str) -> None:
    answer = await http.post("/v1/sessions", headers={"Idempotency-Key": key})
    assert_problem(answer, errors.INVALID_REQUEST, "Idempotency-Key")


async def test_calls_are_cancelled(http: httpx.AsyncClient) -> None:
    session_id = await new_session(http)
    path = f"/v1/sessions/{session_id}/calls"
    for _ in range(2):
        await http.post(path, json=CALL)
    assert (await http.post(f"{path}/c-2/cancel")).json() == {"call_ids": ["c-2"]}
    assert (await http.post(f"{path}/c-2/cancel?subtree=true")).json() == {"call_ids": ["c-1", "c-2"]}


async def test_what_readers_want_reaches_the_manager(http: httpx.AsyncClient, pair: Pair) -> None:
    body = {"criteria": {"kind": "throughput"}, "lazy": True}
    session = (await http.post("/v1/sessions", json=body)).json()
    assert session["criteria"] == {"kind": "throughput", "deadline_unix_ms": None}
    assert session["lazy"] is True
    path = f"/v1/sessions/{session['id']}/variables/v"
    await http.put(path, json={"value": "x"})
    await http.get(f"{path}?wait_s=0&criteria=deadline&deadline_unix_ms=17")
    await http.get(f"{path}/stream?criteria=ttft")
    said = [
        (wanted.kind, wanted.deadline_unix_ms)
        for fake in pair.fakes
        for wanted in fake.criteria
        if wanted.kind
    ]
    assert said == [(pb.OBJECTIVE_KIND_DEADLINE, 17), (pb.OBJECTIVE_KIND_TTFT, 0)]


@pytest.mark.parametrize("query", ["criteria=deadline", "criteria=latency&deadline_unix_ms=1"])
async def test_a_deadline_has_a_time_and_nothing_else_has(http: httpx.AsyncClient, query: str) -> None:
    session_id = await new_session(http)
    answer = await http.get(f"/v1/sessions/{session_id}/variables/v?{query}")
    assert_problem(answer, errors.INVALID_REQUEST, "deadline_unix_ms")


async def test_the_key_is_documented(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path in ("/v1/sessions", "/v1/sessions/{session_id}/calls"):
        (header,) = [p for p in paths[path]["post"]["parameters"] if p["in"] == "header"]
        assert header["name"].lower() == "idempotency-key"
        assert "done once" in header["description"]
