"""An engine with several managers: who is told what, whom it obeys, and what it gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from tests.integration.engine.conftest import SIM
from tests.integration.engine.harness import WAIT_S, Session
from tests.integration.engine.manager import Attachment, Manager, manager_at
from tests.integration.engine.test_control import made_settings, program
from tests.support.manager import eventually
from tests.support.nats import free_port

from parrot_engine.backends.sim import SimBackend
from parrot_engine.main import serve
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.lifecycle import Stop
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.fences import Fences, Mark
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio
LONG = 1900


def session_in(shard: int) -> Session:
    return Session(SessionSubjects("default", f"s{shard:02x}-{uuid4().hex[:16]}"))


def epoch(mark: Mark, lease_epoch: int) -> engine_pb2.ShardEpoch:
    return engine_pb2.ShardEpoch(
        shard=mark.shard,
        delta_sequence=mark.delta_sequence,
        final_sequence=mark.final_sequence,
        lease_epoch=lease_epoch,
    )


def call_ids(refs: object) -> list[str]:
    return [ref.call_id for ref in refs]  # type: ignore[attr-defined]


@dataclass
class Fleet:
    """One engine and the managers a test plays, which divide the shards as the test says."""

    fences: Fences
    ports: list[int] = field(default_factory=lambda: [free_port(), free_port()])
    engine_id: str = "e-1"

    def registered(self, port: int, *epochs: engine_pb2.ShardEpoch) -> engine_pb2.Registered:
        """What a manager says at first; it names all of them, itself first."""
        ports = [port, *(other for other in self.ports if other != port)]
        return engine_pb2.Registered(
            heartbeat_interval_ms=20,
            manager_addresses=[f"127.0.0.1:{other}" for other in ports],
            epochs=epochs,
        )

    async def mark(self, shard: int) -> Mark:
        return (await self.fences.epochs(self.engine_id, [shard]))[shard]


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made


@pytest.fixture
async def fleet(bus: Bus, nats_url: str) -> AsyncIterator[Fleet]:
    """Its engine is given the first manager's address only."""
    made = Fleet(Fences(bus))
    settings = made_settings(made.ports[0], nats_url, WAIT_S)
    engine = asyncio.create_task(serve(settings, SimBackend(SIM), Stop()))
    yield made
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


@dataclass
class Pair:
    """Two managers that the engine is attached to; the first has shard 3, the second shard 4."""

    fleet: Fleet
    exits: list[AsyncExitStack]
    managers: list[Manager]
    first: Attachment
    second: Attachment
    marks: dict[int, Mark]

    async def kill_first(self) -> None:
        await self.exits[0].aclose()

    def second_takes_over(self, shard: int = 3, lease_epoch: int = 2) -> None:
        self.second.epochs(epoch(self.marks[shard], lease_epoch))


@pytest.fixture
async def pair(fleet: Fleet) -> AsyncIterator[Pair]:
    marks = {shard: await fleet.mark(shard) for shard in (3, 4)}
    exits = [AsyncExitStack(), AsyncExitStack()]
    managers = []
    for shard, port, stack in zip(marks, fleet.ports, exits, strict=True):
        manager = await stack.enter_async_context(manager_at(port))
        manager.registered = fleet.registered(port, epoch(marks[shard], 1))
        managers.append(manager)
    first, second = [await manager.next() for manager in managers]
    yield Pair(fleet, exits, managers, first, second, marks)
    for stack in exits:
        await stack.aclose()


async def test_an_engine_attaches_to_every_manager_it_is_told_of(pair: Pair) -> None:
    for attachment in (pair.first, pair.second):
        assert attachment.registration.engine_id == "e-1"
        await attachment.reports.until(lambda event: event.WhichOneof("event") == "heartbeat")


async def test_a_manager_that_comes_later_is_attached_to(fleet: Fleet) -> None:
    late = free_port()
    async with manager_at(fleet.ports[0]) as first, manager_at(late) as second:
        attachment = await first.next()
        named = engine_pb2.Registered(
            manager_addresses=[f"127.0.0.1:{port}" for port in (fleet.ports[0], late)]
        )
        attachment.commands.put_nowait(engine_pb2.AttachResponse(registered=named))
        await second.next()


async def test_each_manager_hears_of_its_own_shards_attempts(pair: Pair) -> None:
    pair.first.run(program(session_in(3), "c-3"))
    pair.second.run(program(session_in(4), "c-4"))
    await pair.first.reports.kind("done", "c-3")
    await pair.second.reports.kind("done", "c-4")
    assert pair.first.reports.kinds("c-4") == []
    assert pair.second.reports.kinds("c-3") == []


async def test_what_runs_when_a_manager_dies_is_adopted_and_reported_to_the_next(pair: Pair) -> None:
    session = session_in(3)
    pair.first.run(program(session, max_tokens=LONG))
    await pair.first.reports.kind("streaming")
    await pair.kill_first()
    pair.second_takes_over()
    pair.second.adopt(session.ref(), session.ref("c-2"))
    answer = await pair.second.reports.until(lambda event: event.HasField("adopted"))
    assert call_ids(answer.adopted.refs) == ["c-1"]
    assert call_ids(answer.adopted.unknown) == ["c-2"]
    await pair.second.reports.kind("done")


@pytest.mark.parametrize("told", [True, False])
async def test_the_end_of_an_attempt_is_told_to_the_next_manager_whoever_heard_it_before(
    pair: Pair, bus: Bus, told: bool
) -> None:
    session = session_in(3)
    pair.first.run(program(session, max_tokens=200))
    await pair.first.reports.kind("done" if told else "streaming")
    await pair.kill_first()
    await eventually(lambda: Finals(bus).read(session.names.final("y-c-1")), WAIT_S)
    pair.second_takes_over()
    pair.second.adopt(session.ref())
    await pair.second.reports.kind("done")
    answer = await pair.second.reports.until(lambda event: event.HasField("adopted"))
    assert call_ids(answer.adopted.refs) == ["c-1"]


async def test_a_program_for_an_attempt_it_did_not_know_is_not_run_any_more(pair: Pair) -> None:
    session = session_in(3)
    pair.first.adopt(session.ref("c-late"))
    await pair.first.reports.until(lambda event: event.HasField("adopted"))
    pair.first.run(program(session, "c-late"))
    pair.first.run(program(session, "c-other"))
    await pair.first.reports.kind("done", "c-other")
    assert pair.first.reports.kinds("c-late") == []


async def test_a_manager_that_lost_a_shard_is_not_obeyed_there(pair: Pair) -> None:
    session = session_in(3)
    pair.first.run(program(session, "c-old", max_tokens=LONG))
    await pair.first.reports.kind("started", "c-old")
    pair.second_takes_over()
    pair.second.run(program(session, "c-new", max_tokens=10))
    await pair.second.reports.kind("done", "c-new")
    pair.first.cancel(session.ref("c-old"))
    pair.first.run(program(session, "c-zombie"))
    pair.first.epochs(epoch(pair.marks[3], 1))
    await pair.second.reports.kind("done", "c-old")
    assert pair.second.reports.kinds("c-zombie") == []
    assert pair.first.reports.kinds("c-zombie") == []


async def test_new_epochs_end_what_ran_under_the_old_ones_and_nothing_else(pair: Pair) -> None:
    fenced, other = session_in(3), session_in(4)
    pair.first.run(program(fenced, max_tokens=LONG))
    pair.second.run(program(other, max_tokens=400))
    await pair.first.reports.kind("streaming")
    await pair.fleet.fences.fence("e-1", [3])
    pair.first.epochs(epoch(await pair.fleet.mark(3), 1))
    assert (await pair.first.reports.failure()).type == "engine_lost"
    pair.first.run(program(fenced, "c-2"))
    await pair.first.reports.kind("done", "c-2")
    await pair.second.reports.kind("done")


async def test_an_engine_the_bus_refuses_gives_up_the_shard_and_asks_for_epochs_that_hold(
    pair: Pair, bus: Bus
) -> None:
    session = session_in(3)
    pair.first.run(program(session, "c-long", max_tokens=LONG))
    await pair.first.reports.kind("streaming", "c-long")
    await pair.fleet.fences.fence("e-1", [3])
    pair.first.run(program(session, "c-short", max_tokens=20))
    assert (await pair.first.reports.failure("c-short")).type == "engine_lost"
    assert (await pair.first.reports.failure("c-long")).type == "engine_lost"
    asked = await pair.first.reports.until(lambda event: event.HasField("fenced"))
    assert list(asked.fenced.shards) == [3]
    assert await Finals(bus).read(session.names.final("y-c-short")) is None
    pair.first.epochs(epoch(await pair.fleet.mark(3), 1))
    pair.first.run(program(session, "c-next", max_tokens=20))
    await pair.first.reports.kind("done", "c-next")
    assert await Finals(bus).read(session.names.final("y-c-next")) is not None


async def test_a_failure_is_told_once_all_that_was_streamed_is_on_the_bus(pair: Pair, bus: Bus) -> None:
    """The next attempt goes on behind what it finds there."""
    session = session_in(3)
    long = program(session, max_tokens=LONG)
    long.deadline_unix_ms = round(time.time() * 1000) + 300
    pair.first.run(long)
    assert (await pair.first.reports.failure()).type == "deadline_exceeded"
    kept = await bus.js.get_last_msg(subjects.DELTA_STREAM, session.names.delta, direct=True)
    last = values_pb2.StepDeltas.FromString(kept.data or b"")
    assert (last.engine_id, len(last.deltas)) == ("e-1", 0), "the message whose answer was waited for is last"
