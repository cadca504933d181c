"""Lists of sessions: a tenant's own, in one order over all shards and managers, page after page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from grpc import aio
from tests.support.manager import Client, ManagerUnderTest, call, eventually, serving

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Call, CallState, Session, SessionState
from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.leases import Member
from parrot_manager.store.listing import Place
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import opened
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1.manager_pb2_grpc import ManagerServiceStub
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

ME = Member("m-1", "first", "here:1")


def numbered(number: int, *, tenant: str = "ours", created_ms: int = 0) -> Session:
    """A session in a shard of its own."""
    name = f"s{number % SHARDS:02x}-{number:016x}"
    return Session(name, tenant, f"label {number}", SessionState.OPEN, created_ms or number, 9_000)


@pytest.fixture(params=["memory", "postgres"])
async def any_store(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Store]:
    """Each of the stores, empty, with all shards taken."""
    if request.param == "memory":
        store: Store = MemoryStore()
        await store.leases.join(ME, range(SHARDS), 60)
        await store.leases.claim(ME, range(SHARDS))
        yield store
        return
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as made:
        await made.leases.join(ME, range(SHARDS), 60)
        await made.leases.claim(ME, range(SHARDS))
        yield made


async def pages(store: Store, limit: int, state: SessionState | None = None) -> list[list[str]]:
    """The labels of every page, one after another."""
    found: list[list[str]] = []
    after: Place | None = None
    while page := await store.list_sessions("ours", state, after, limit):
        found.append([one.session.label for one in page])
        after = Place.of(page[-1].session)
    return found


async def test_pages_follow_one_another_without_a_gap_or_a_repeat(any_store: Store) -> None:
    for number in range(1, 8):
        # Several of one moment: their ids decide.
        await any_store.insert_session(numbered(number, created_ms=number // 3 + 1), 1)
    assert await pages(any_store, 3) == [
        ["label 7", "label 6", "label 5"],
        ["label 4", "label 3", "label 2"],
        ["label 1"],
    ]
    assert await pages(any_store, 7) == [[f"label {number}" for number in range(7, 0, -1)]]


async def test_a_tenant_sees_its_own_and_none_besides(any_store: Store) -> None:
    await any_store.insert_session(numbered(1), 1)
    await any_store.insert_session(numbered(2, tenant="theirs"), 1)
    assert await pages(any_store, 10) == [["label 1"]]
    behind_theirs = Place.of(numbered(2, tenant="theirs"))
    assert [one.session.label for one in await any_store.list_sessions("ours", None, behind_theirs, 10)] == [
        "label 1"
    ]
    assert await any_store.list_sessions("nobody", None, None, 10) == []


async def test_a_state_is_listed_by_itself(any_store: Store) -> None:
    for number in range(1, 6):
        session = numbered(number)
        await any_store.insert_session(session, 1)
        if number % 2:
            ended = replace(session, state=SessionState.FAILED, ended_ms=5_000)
            await any_store.commit(session.id, Changes(session=ended), 1)
    assert await pages(any_store, 2, SessionState.FAILED) == [["label 5", "label 3"], ["label 1"]]
    assert await pages(any_store, 9, SessionState.OPEN) == [["label 4", "label 2"]]
    assert await pages(any_store, 9, SessionState.EXPIRED) == []


async def test_a_session_comes_with_the_numbers_of_its_calls(any_store: Store) -> None:
    session = numbered(1)
    await any_store.insert_session(session, 1)
    calls = [Call(session.id, f"c-{n}", n, n, "f", "m", (), (), b"", 1_000) for n in (1, 2, 3)]
    await any_store.insert_calls(CallsAccepted(session.id, tuple(calls), (), ()), 1)
    failed = replace(calls[1], state=CallState.FAILED, ended_ms=2_000)
    done = replace(calls[2], state=CallState.DONE, ended_ms=2_000)
    await any_store.commit(session.id, Changes(calls=(failed, done)), 1)
    await any_store.insert_session(numbered(2), 1)
    listed = await any_store.list_sessions("ours", None, None, 10)
    assert [(one.session.id, one.calls, one.calls_ended) for one in listed] == [
        (numbered(2).id, 0, 0),
        (session.id, 3, 2),
    ]


@pytest.mark.parametrize(
    "text", ["", "x", "-", "1", "-1-s00-0000000000000001", "1-s00", "²-s00-0000000000000001"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Fault) as refused:
        Place.parse(text, "after")
    assert (refused.value.kind, refused.value.field) == (errors.INVALID_REQUEST, "after")


def test_a_place_survives_being_written_down() -> None:
    place = Place(1_764_000_000_000, "s0f-00000000000000ff")
    assert Place.parse(str(place), "after") == place
    with pytest.raises(Fault):
        Place.parse("9" * 30 + str(place), "after")


async def listed(
    manager: ManagerUnderTest, tenant: str = "default", **fields: Any
) -> pb.ListSessionsResponse:
    """What a manager lists."""
    async with rpc.channel(manager.address) as channel:
        stub: Any = ManagerServiceStub(channel)
        try:
            answer: pb.ListSessionsResponse = await stub.ListSessions(
                pb.ListSessionsRequest(tenant=tenant, **fields), timeout=10
            )
        except aio.AioRpcError as error:
            raise rpc.fault_of(error, "manager") from None
        return answer


def ids_of(answer: pb.ListSessionsResponse) -> list[str]:
    """The sessions of a page."""
    return [one.session.id for one in answer.sessions]


async def all_pages(manager: ManagerUnderTest, limit: int) -> list[str]:
    """Every session, page by page."""
    found: list[str] = []
    after = ""
    while True:
        answer = await listed(manager, limit=limit, after=after)
        found += ids_of(answer)
        if not answer.next:
            return found
        after = answer.next


async def opened_by(client: Client, count: int) -> Sequence[str]:
    """So many new sessions."""
    return [await client.open(label=f"session {number}") for number in range(count)]


async def test_any_manager_lists_what_others_serve(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as first, serving(store, bus, manager_id="m-2") as second:

        async def shared() -> bool:
            return [len(one.shards) for one in await first.client.managers()] == [8, 8]

        await eventually(shared, within_s=20)
        made = [await client.open() for client in (first.client, second.client) for _ in range(3)]
        newest_first = await all_pages(first, 200)
        assert sorted(newest_first) == sorted(made)
        for manager in (first, second):
            assert await all_pages(manager, 2) == newest_first


async def test_what_was_accepted_and_what_ended_is_listed_once_it_is_stored(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        first, second = await opened_by(manager.client, 2)
        await manager.client.submit(first, [call("one", [], ["a"])])
        await manager.client.close(second)
        answer = await listed(manager)
        assert {one.session.id: (one.calls, one.calls_ended) for one in answer.sessions} == {
            first: (1, 0),
            second: (0, 0),
        }
        assert ids_of(await listed(manager, state=common_pb2.SESSION_STATE_OPEN)) == [first]
        assert ids_of(await listed(manager, state=common_pb2.SESSION_STATE_CLOSED)) == [second]
        assert ids_of(await listed(manager, tenant="theirs")) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"limit": 201}, "limit"), ({"after": "yesterday"}, "after"), ({"state": 77}, "state")],
)
async def test_a_list_that_makes_no_sense_is_refused(
    memory: Store, bus: Bus, fields: dict[str, Any], field: str
) -> None:
    async with serving(memory, bus) as manager:
        with pytest.raises(Fault) as refused:
            await listed(manager, **fields)
        assert (refused.value.kind, refused.value.field) == (errors.INVALID_REQUEST, field)
