"""Values on streams with replicas: heard whole, fenced, and read as they were acknowledged, whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

import pytest
from tests.support.nats_cluster import NatsCluster

from parrot_runtime.ids import new_session_id, shard_of
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import MANAGER, Bus, connected
from parrot_runtime.values.fences import FencedError, Fences, Mark
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Chunk, End, Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

WITHIN_S = 60.0
SESSIONS = 24
STEPS = 60
PIECE = "a piece "


@dataclass(frozen=True, slots=True)
class Buses:
    """The connections of a manager, an engine and a gateway."""

    manager: Bus
    engine: Bus
    gateway: Bus


@pytest.fixture
async def buses(cluster: NatsCluster) -> AsyncIterator[Buses]:
    """Connections to the cluster, by role."""
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(
            connected(cluster.url, "m", WITHIN_S, replicas=3, role=MANAGER)
        )
        engine = await stack.enter_async_context(connected(cluster.url, "e", WITHIN_S, role="engine"))
        gateway = await stack.enter_async_context(connected(cluster.url, "g", WITHIN_S, role="gateway"))
        yield Buses(manager, engine, gateway)


@pytest.fixture
def engine_id() -> str:
    """An engine nobody else is."""
    return f"e-{uuid4().hex[:8]}"


async def write(
    writer: DeltaWriter, names: SessionSubjects, mark: Mark, steps: int, attempt: int = 1
) -> None:
    """An output's text, step by step."""
    for step in range(steps):
        writer.append(
            names.delta,
            variable_id="v",
            call_id="c",
            attempt=1,
            offset_bytes=step * len(PIECE),
            text=PIECE,
            mark=mark,
        )
        await asyncio.sleep(0.01)


async def read(feeds: Feeds, names: SessionSubjects, size_bytes: int) -> str:
    """So much of the output's text, each byte once."""
    text = ""
    async with feeds.session(names.tenant, names.session_id) as feed:
        feed.catch_up()
        cursor = feed.cursor("v")
        while len(text) < size_bytes:
            news = await cursor.next(WITHIN_S)
            assert isinstance(news, Chunk)
            assert news.offset_bytes == len(text)
            text += news.text
        cursor.close()
    return text


async def end_of(feeds: Feeds, names: SessionSubjects) -> FinalRecord:
    """The output's end, as it is heard."""
    async with feeds.session(names.tenant, names.session_id) as feed:
        cursor = feed.cursor("v")
        while not isinstance(news := await cursor.next(WITHIN_S), End):
            assert news is not None
        return news.record


def sessions(count: int) -> list[SessionSubjects]:
    """New sessions, of any shard."""
    return [SessionSubjects("default", new_session_id()) for _ in range(count)]


@pytest.mark.parametrize("dies", ["nobody", "leader"])
async def test_text_of_many_sessions_is_heard_whole_without_waiting_for_its_final(
    cluster: NatsCluster, buses: Buses, engine_id: str, dies: str
) -> None:
    marks = await Fences(buses.manager).epochs(engine_id, range(16))
    feeds, size_bytes = Feeds(buses.gateway), STEPS * len(PIECE)
    names = sessions(SESSIONS)
    async with DeltaWriter(buses.engine, engine_id) as writer, asyncio.TaskGroup() as group:
        readers = [group.create_task(read(feeds, one, size_bytes)) for one in names]
        for one in names:
            group.create_task(write(writer, one, marks[shard_of(one.session_id)], STEPS))
        if dies == "leader":
            leader = await cluster.leader_of(subjects.DELTA_STREAM)
            leader.kill()
            await cluster.leader_of(subjects.DELTA_STREAM, but=leader)
    assert {reader.result() for reader in readers} == {PIECE * STEPS}
    if dies == "leader":
        assert buses.gateway.breaks.count > 0


async def test_an_engine_that_is_fenced_adds_nothing_to_what_is_read_then(
    buses: Buses, engine_id: str
) -> None:
    fences, names = Fences(buses.manager), sessions(8)
    marks = await fences.epochs(engine_id, range(16))
    async with DeltaWriter(buses.engine, engine_id) as writer:
        writing = [
            asyncio.create_task(write(writer, one, marks[shard_of(one.session_id)], 1000)) for one in names
        ]
        await eventually_last(buses.manager, names)
        await fences.fence(engine_id, range(16))
        before = [await sequence(buses.manager, one) for one in names]
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        for one in names:
            await writer.settle(one.delta, marks[shard_of(one.session_id)])
    assert [await sequence(buses.manager, one) for one in names] == before
    with pytest.raises(FencedError):
        await Finals(buses.engine).publish(
            names[0].final("v"),
            FinalRecord("v", "c", 1, text="late"),
            mark=marks[shard_of(names[0].session_id)],
        )


async def test_ends_of_one_shard_are_published_at_once_and_read_at_once(buses: Buses, engine_id: str) -> None:
    marks = await Fences(buses.manager).epochs(engine_id, [5])
    names = [SessionSubjects("default", new_session_id([5])) for _ in range(SESSIONS)]
    finals, record = Finals(buses.engine), FinalRecord("v", "c", 1, text="whole")
    await asyncio.gather(*(finals.publish(one.final("v"), record, mark=marks[5]) for one in names))
    found = await asyncio.gather(*(Finals(buses.gateway).read(one.final("v")) for one in names))
    assert {one.text for one in found if one is not None} == {"whole"}
    assert None not in found


async def test_an_end_that_nobody_told_of_is_found_after_a_break(buses: Buses) -> None:
    (names,) = sessions(1)
    feeds = Feeds(buses.gateway)
    async with feeds.session(names.tenant, names.session_id) as feed:
        # What a leader has taken and its successor does not tell: here nobody listens.
        for subscription in feed._subscriptions:
            await subscription.unsubscribe()
        feed._subscriptions.clear()
        ending = asyncio.create_task(end_of(feeds, names))
        await asyncio.sleep(0)
        await Finals(buses.engine).publish(names.final("v"), FinalRecord("v", "c", 1, text="whole"))
        await buses.manager.client.request(
            f"$JS.API.STREAM.LEADER.STEPDOWN.{subjects.FINAL_STREAM}", b"", timeout=5
        )
        assert (await asyncio.wait_for(ending, WITHIN_S)).text == "whole"


async def sequence(bus: Bus, names: SessionSubjects) -> int:
    """Of the last step message there is."""
    found = await bus.last(subjects.DELTA_STREAM, names.delta)
    return (found.seq or 0) if found is not None else 0


async def eventually_last(bus: Bus, names: list[SessionSubjects]) -> None:
    """Returns once every session has text."""
    async with asyncio.timeout(WITHIN_S):
        while not all([await sequence(bus, one) for one in names]):  # noqa: ASYNC110 - a server sets none
            await asyncio.sleep(0.01)
