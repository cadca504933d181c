"""An engine that was given up is refused by the bus itself, in the shards where it was, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from nats.js.errors import NotFoundError
from tests.support.manager import eventually
from tests.support.nats import NatsServer

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors, ids
from parrot_runtime.errors import Fault
from parrot_runtime.values import finals as finals_module
from parrot_runtime.values import lanes as lanes_module
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.fences import FencedError, Fences, Mark
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Chunk, End, Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

pytestmark = pytest.mark.anyio
ALL_SHARDS = range(ids.SHARDS)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made


@pytest.fixture
def engine_id() -> str:
    return f"e-{uuid4().hex}"


def session_in(shard: int) -> SessionSubjects:
    return SessionSubjects("default", f"s{shard:02x}-{uuid4().hex[:16]}")


async def write(bus: Bus, names: SessionSubjects, mark: Mark, text: str, attempt: int = 1) -> None:
    """One delta at the variable's start, handed to the server."""
    async with DeltaWriter(bus, mark.engine_id) as writer:
        writer.append(
            names.delta,
            variable_id="v",
            call_id="c-1",
            attempt=attempt,
            offset_bytes=0,
            text=text,
            mark=mark,
        )
    await bus.client.flush()


async def end(bus: Bus, names: SessionSubjects, mark: Mark, text: str, attempt: int = 1) -> None:
    record = FinalRecord("v", "c-1", attempt, text=text)
    await Finals(bus).publish(names.final("v"), record, mark=mark)


async def last_delta(bus: Bus, names: SessionSubjects) -> str | None:
    """The text the stream of deltas keeps last of a session."""
    try:
        kept = await bus.js.get_last_msg(subjects.DELTA_STREAM, names.delta, direct=True)
    except NotFoundError:
        return None
    return values_pb2.StepDeltas.FromString(kept.data or b"").deltas[0].text


async def test_what_a_fenced_engine_writes_reaches_neither_the_streams_nor_a_reader(
    bus: Bus, engine_id: str
) -> None:
    names, fences = session_in(3), Fences(bus)
    mark = (await fences.epochs(engine_id, [3]))[3]
    async with Feeds(bus).session("default", names.session_id) as feed:
        cursor = feed.cursor("v")
        await write(bus, names, mark, "kept")
        assert await cursor.next(5) == Chunk(0, "kept")
        await fences.fence(engine_id, [3])
        # By a later attempt's number: nothing but the bus stands between it and the reader.
        await write(bus, names, mark, "kept and a zombie", attempt=9)
        with pytest.raises(FencedError):
            await end(bus, names, mark, "kept and a zombie", attempt=9)
        successor = (await fences.epochs("e-other", [3]))[3]
        await end(bus, names, successor, "kept, and its successor", attempt=2)
        assert await cursor.next(5) == Chunk(4, ", and its successor")
        assert isinstance(await cursor.next(5), End)
    assert await last_delta(bus, names) == "kept"


async def test_every_part_of_a_large_value_and_every_rollout_is_refused(bus: Bus, engine_id: str) -> None:
    names, fences = session_in(0), Fences(bus)
    mark = (await fences.epochs(engine_id, [0]))[0]
    await fences.fence(engine_id, [0])
    with pytest.raises(FencedError):
        await end(bus, names, mark, "x" * 2_000_000)
    rollout = values_pb2.Rollout(variable_id="v", attempt=1, parts=1)
    with pytest.raises(FencedError):
        await Finals(bus).publish_rollout(names.final("v"), rollout, mark=mark)
    for subject in (subjects.part(names.final("v"), 1), subjects.rollout(names.final("v"), 0)):
        with pytest.raises(NotFoundError):
            await bus.js.get_last_msg(subjects.FINAL_STREAM, subject, direct=True)


async def test_shards_and_engines_are_fenced_each_by_itself(bus: Bus, engine_id: str) -> None:
    fences = Fences(bus)
    marks = await fences.epochs(engine_id, ALL_SHARDS)
    others = await fences.epochs(f"{engine_id}-2", ALL_SHARDS)
    await fences.fence(engine_id, [4, 5])
    for shard in ALL_SHARDS:
        await end(bus, session_in(shard), others[shard], "text")
        if shard in {4, 5}:
            with pytest.raises(FencedError):
                await end(bus, session_in(shard), marks[shard], "text")
        else:
            await end(bus, session_in(shard), marks[shard], "text")


async def test_marks_stay_until_the_engine_is_fenced_whoever_asks(bus: Bus, engine_id: str) -> None:
    first = await Fences(bus).epochs(engine_id, ALL_SHARDS)
    assert await Fences(bus).epochs(engine_id, ALL_SHARDS) == first
    await Fences(bus).fence(engine_id, [7])
    second = await Fences(bus).epochs(engine_id, ALL_SHARDS)
    assert {shard for shard in ALL_SHARDS if first[shard] != second[shard]} == {7}
    await end(bus, session_in(7), second[7], "text")


async def test_two_managers_that_ask_at_once_are_told_the_same(bus: Bus, engine_id: str) -> None:
    told = await asyncio.gather(*(Fences(bus).epochs(engine_id, ALL_SHARDS) for _ in range(5)))
    assert all(marks == told[0] for marks in told)


async def test_what_is_asked_about_an_engine_is_done_in_order(bus: Bus, engine_id: str) -> None:
    fences = Fences(bus)
    before = (await fences.epochs(engine_id, [1]))[1]
    _, after = await asyncio.gather(fences.fence(engine_id, [1]), fences.epochs(engine_id, [1]))
    assert after[1] != before
    await end(bus, session_in(1), after[1], "text")


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[tuple[NatsServer, Bus]]:
    """A server that a test may kill."""
    server = NatsServer(tmp_path)
    server.start()
    async with connected(server.url, "test", 5) as bus:
        yield server, bus
    server.stop()


async def after_age(bus: Bus, look: Callable[[], Awaitable[object]]) -> None:
    async def gone() -> bool:
        return not await look()

    await eventually(gone, 30)


@pytest.mark.parametrize("crashes", [True, False])
async def test_marks_outlive_the_messages_they_are_on_and_the_server(
    own_server: tuple[NatsServer, Bus], engine_id: str, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    server, bus = own_server
    names = session_in(2)
    marks = await Fences(bus).epochs(engine_id, [2, 6])
    for module in (lanes_module, finals_module):
        monkeypatch.setattr(module, "_AGE", {"Nats-TTL": "1"})
    await write(bus, names, marks[2], "text")
    await end(bus, names, marks[2], "text")
    await after_age(bus, lambda: last_delta(bus, names))
    await after_age(bus, lambda: Finals(bus).read(names.final("v")))
    server.kill() if crashes else server.stop()
    server.start()
    assert await eventually(lambda: _answered(bus, engine_id)) == marks
    await write(bus, names, marks[2], "again")
    await end(bus, names, marks[2], "again")
    assert await last_delta(bus, names) == "again"
    await Fences(bus).fence(engine_id, [2])
    with pytest.raises(FencedError):
        await end(bus, names, marks[2], "zombie", attempt=2)


async def test_an_engine_stays_fenced_when_what_fenced_it_is_gone_with_age(
    bus: Bus, engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parrot_runtime.values.fences.FINAL_AGE_S", 1)
    mark = (await Fences(bus).epochs(engine_id, [1]))[1]
    await Fences(bus).fence(engine_id, [1])

    async def look() -> bool:
        try:
            await bus.js.get_last_msg(subjects.FINAL_STREAM, subjects.final_epoch(1, engine_id), direct=True)
        except NotFoundError:
            return False
        return True

    await after_age(bus, look)
    with pytest.raises(FencedError):
        await end(bus, session_in(1), mark, "zombie")


async def test_fencing_waits_for_the_bus_and_asking_does_not(
    own_server: tuple[NatsServer, Bus], engine_id: str
) -> None:
    server, bus = own_server
    mark = (await Fences(bus).epochs(engine_id, [1]))[1]
    server.kill()
    with pytest.raises(Fault) as caught:
        await Fences(bus).epochs(engine_id, [1])
    assert caught.value.kind is errors.UNAVAILABLE
    fencing = asyncio.create_task(Fences(bus).fence(engine_id, [1]))
    await asyncio.wait([fencing], timeout=0.1)
    assert not fencing.done()
    server.start()
    await asyncio.wait_for(fencing, 20)
    with pytest.raises(FencedError):
        await end(bus, session_in(1), mark, "zombie")


async def _answered(bus: Bus, engine_id: str) -> dict[int, Mark] | None:
    try:
        return await Fences(bus).epochs(engine_id, [2, 6])
    except Fault:
        return None
