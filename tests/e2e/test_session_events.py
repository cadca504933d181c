"""A session's events on the real stack: all that happens, once, in order, on any gateway, whatever dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest
from tests.support.gateway import running_gateway
from tests.support.up import Event, Up, data_folder, running

from parrot.sse import Event as News
from parrot.sse import Parser
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import ids, rpc

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
STATES = {"session", "call", "block", "variable"}
Ready = tuple[Up, Event]


@pytest.fixture(scope="module")
def stack() -> Iterator[Ready]:
    """Two managers and a simulated engine of 10 ms a token."""
    flags = ("--backend", "sim", "--managers", "2")
    with data_folder() as folder, running(folder, *flags) as up:
        yield up, up.wait_up()
        assert up.stop() == 0


@pytest.fixture
async def http(stack: Ready) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack[0].url, timeout=60) as client:
        yield client


@asynccontextmanager
async def another_gateway(stack: Ready) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second gateway of the stack."""
    where = stack[1]
    async with (
        running_gateway(where["manager_address"], where["nats_url"]) as made,
        httpx.AsyncClient(base_url=made.url, timeout=60) as client,
    ):
        yield client


class Reader:
    """One connection to a session's events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._blocks = response.aiter_bytes()
        self._parser = Parser()
        self._events: list[News] = []

    async def next(self) -> News | None:
        """The next event; None at the end."""
        while not self._events:
            block = await anext(self._blocks, None)
            if block is None:
                return None
            self._events += self._parser.feed(block)
        return self._events.pop(0)

    async def until(self, name: str, **members: Any) -> list[News]:
        """The events up to the first of that name with these members."""
        found: list[News] = []
        while (event := await self.next()) is not None:
            found.append(event)
            data = json.loads(event.data)
            if event.event == name and all(data[key] == value for key, value in members.items()):
                return found
        raise AssertionError(f"no {name} {members} among {found}")

    async def rest(self) -> list[News]:
        """All events to the end."""
        found: list[News] = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def events(http: httpx.AsyncClient, session_id: str, last_event_id: str = "") -> AsyncIterator[Reader]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with http.stream("GET", f"/v1/sessions/{session_id}/events", headers=headers) as response:
        yield Reader(response)


async def opened(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/sessions")).json()["id"])


def chain(*names: str, tokens: int = 12) -> dict[str, Any]:
    """Calls of which each reads what the one before makes."""
    calls = []
    for place, name in enumerate(names):
        before = {"semantic_var_id": names[place - 1]} if place else {"value": "It began."}
        output = {"max_tokens": tokens, "ignore_eos": True}
        calls.append(
            {
                "name": f"make {name}",
                "prompt": "{{before}} And so: {{after}}",
                "placeholders": [
                    {"name": "before", "in_out": "in", **before},
                    {"name": "after", "in_out": "out", "semantic_var_id": name, "sampling": output},
                ],
            }
        )
    return {"calls": calls}


async def submit(http: httpx.AsyncClient, session_id: str, batch: dict[str, Any]) -> None:
    answer = await http.post(f"/v1/sessions/{session_id}/calls", json=batch)
    assert answer.status_code == 201, answer.text


async def value(http: httpx.AsyncClient, session_id: str, name: str) -> str:
    got = (await http.get(f"/v1/sessions/{session_id}/variables/{name}", params={"wait_s": 60})).json()
    assert got["state"] == "ready", got
    return str(got["value"])


def number(event: News, session_id: str) -> int:
    head, _, tail = event.id.partition(":")
    assert head == session_id
    return int(tail)


def texts(found: list[News]) -> dict[str, str]:
    """The text of each variable, whose pieces follow one another."""
    texts: dict[str, str] = {}
    for event in found:
        if event.event == "delta":
            delta = json.loads(event.data)
            before = texts.get(delta["semantic_var_id"], "")
            assert delta["offset"] == len(before.encode())
            texts[delta["semantic_var_id"]] = before + delta["text"]
    return texts


def history(found: list[News], kind: str) -> dict[str, list[str]]:
    """The states each thing of a kind went through."""
    told: dict[str, list[str]] = {}
    for event in found:
        if event.event == kind:
            data = json.loads(event.data)
            told.setdefault(data["id"], []).append(data["state"])
    return told


async def test_all_that_happens_is_told_once_and_in_order(http: httpx.AsyncClient) -> None:
    session_id = await opened(http)
    async with events(http, session_id) as reader:
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        begun = await reader.until("snapshot")
        assert [json.loads(event.data) for event in begun] == [
            {"id": session_id, "state": "open"},
            {"calls": 0, "blocks": 0, "variables": 0},
        ]
        await submit(http, session_id, chain("a", "b", "c"))
        found = await reader.until("variable", id="c", state="ready")
        await http.delete(f"/v1/sessions/{session_id}")
        found += await reader.rest()
    numbers = [number(event, session_id) for event in [begun[-1], *found]]
    assert numbers == sorted(set(numbers))
    assert texts(found) == {name: await value(http, session_id, name) for name in "abc"}
    calls = history(found, "call")
    assert {name: states[-1] for name, states in calls.items()} == {
        "c-1": "done",
        "c-2": "done",
        "c-3": "done",
    }
    assert all(states.count("done") == 1 for states in calls.values())
    variables = history(found, "variable")
    assert all(variables[name][-1] == "ready" for name in "abc")
    assert history(found, "session")[session_id][-1] == "closed"
    assert (found[-1].event, found[-1].data) == ("done", '{"state":"closed"}')


async def test_any_event_is_a_place_to_go_on_from_on_another_gateway(
    stack: Ready, http: httpx.AsyncClient
) -> None:
    session_id = await opened(http)
    async with events(http, session_id) as reader:
        whole = await reader.until("snapshot")
        await submit(http, session_id, chain("a", "b"))
        whole += await reader.until("variable", id="b", state="ready")
        await http.delete(f"/v1/sessions/{session_id}")
        whole += await reader.rest()
    whole = [event for event in whole if event.id]
    async with another_gateway(stack) as other:
        for place in (0, 1, 2, 9, 10, 11, len(whole) // 2, len(whole) - 2, len(whole) - 1):
            async with events(other, session_id, whole[place].id) as reader:
                rest = await reader.rest()
                assert [(one.event, one.data, one.id) for one in rest] == [
                    (one.event, one.data, one.id) for one in (whole[place + 1 :] or whole[-1:])
                ]


async def test_a_late_reader_gets_how_it_is_and_then_the_same_as_the_others(http: httpx.AsyncClient) -> None:
    session_id = await opened(http)
    async with events(http, session_id) as early:
        await submit(http, session_id, chain("a", "b", tokens=60))
        before = await early.until("delta", semantic_var_id="b")
        async with events(http, session_id) as late:
            snapshot = await late.until("snapshot")
            assert history(snapshot, "variable")["a"] == ["ready"]
            assert all(not event.id for event in snapshot[:-1])
            news = await late.until("variable", id="b", state="ready")
            others = before + await early.until("variable", id="b", state="ready")
    whole = await value(http, session_id, "b")
    assert texts([*snapshot, *news])["b"] == whole == texts(others)["b"]
    begun = number(snapshot[-1], session_id)
    assert news == [event for event in others if event.id and number(event, session_id) > begun]


async def test_ids_that_are_none_of_the_sessions_are_refused(http: httpx.AsyncClient) -> None:
    session_id, other_id = await opened(http), await opened(http)
    for name in (session_id, other_id):
        await submit(http, name, chain("a"))
        await value(http, name, "a")
    async with events(http, other_id) as reader:
        foreign = (await reader.until("snapshot"))[-1].id
    async with events(http, session_id) as reader:
        mine = number((await reader.until("snapshot"))[-1], session_id)
    between = mine - 1
    for event_id in (
        foreign,
        foreign.replace(other_id, session_id),
        f"{session_id}:{between}",
        f"{session_id}:{mine + (1 << 30)}",
        f"{session_id}:999999999999999999",
        f"{session_id}:0",
        f"{session_id}:-1",
        f"{session_id}:",
        f"{session_id}/a:1",
        "-1",
        "9999999",
        "abc",
    ):
        async with events(http, session_id, event_id) as reader:
            problem = json.loads(await reader.response.aread())
            assert reader.response.status_code == 400, (event_id, problem)
            assert problem["field"] == "Last-Event-ID"
    unknown = await http.get(f"/v1/sessions/{ids.new_session_id()}/events")
    assert unknown.status_code == 404


async def test_failures_are_told_with_their_cause(http: httpx.AsyncClient) -> None:
    session_id = await opened(http)
    batch = chain("a", "b")
    batch["calls"][0]["placeholders"][1]["transforms"] = ["regex:no such text"]
    async with events(http, session_id) as reader:
        await submit(http, session_id, batch)
        found = await reader.until("variable", id="b", state="failed")
    failed = json.loads(found[-1].data)["error"]
    assert failed["type"] == "urn:parrot:problem:upstream_failed"
    assert failed["cause_type"] == "urn:parrot:problem:transform_failed"


async def test_a_dead_managers_session_is_told_on_where_it_was(stack: Ready, http: httpx.AsyncClient) -> None:
    session_id = await opened(http)
    async with events(http, session_id) as reader:
        await submit(http, session_id, chain("a", "b", tokens=80))
        found = await reader.until("delta", semantic_var_id="a")
        await _kill_manager_of(stack, session_id)
        found += await reader.until("variable", id="b", state="ready")
        await http.delete(f"/v1/sessions/{session_id}")
        found += await reader.rest()
    assert texts(found) == {name: await value(http, session_id, name) for name in "ab"}
    numbers = [number(event, session_id) for event in found if event.id]
    assert numbers == sorted(set(numbers))
    told = [(event.event, event.data) for event in found if event.event in STATES]
    ends = [one for one in told if json.loads(one[1])["state"] in {"done", "ready", "closed"}]
    assert len(ends) == len(set(ends))
    assert history(found, "call")["c-2"][-1] == "done"
    async with another_gateway(stack) as other, events(other, session_id, found[5].id) as reader:
        rest = await reader.rest()
        assert [one.data for one in rest] == [one.data for one in found[6:]]


async def _kill_manager_of(stack: Ready, session_id: str) -> None:
    """Kills the manager that serves a session, and returns once another does."""
    async with rpc.channel(rpc.addresses_of(stack[1]["manager_address"])[0]) as channel:
        stub: Any = ManagerServiceStub(channel)
        found: pb.ListManagersResponse = await stub.ListManagers(pb.ListManagersRequest(), timeout=10)
    shard = ids.shard_of(session_id)
    (name,) = [one.id for one in found.managers if shard in one.shards]
    for process in stack[0].tree():
        words = process.cmdline()
        if "--manager-id" in words and words[words.index("--manager-id") + 1] == name:
            process.kill()
            await asyncio.to_thread(psutil.wait_procs, [process])
            return
    raise AssertionError(f"no process of {name}")
