"""Who hears of an attempt: the manager that speaks for its shard, whoever spoke for it before."""

from __future__ import annotations

import asyncio

import pytest

from parrot_engine.servicer.memory import KEPT, Memory
from parrot_engine.servicer.outbox import Outbox
from parrot_engine.servicer.shards import Shards
from parrot_proto.engine.v1 import engine_pb2

pytestmark = pytest.mark.anyio


def done(shard: int, call_id: str = "c-1") -> engine_pb2.AttachRequest:
    ref = engine_pb2.AttemptRef(session_id=f"s{shard:02x}-{'0' * 16}", call_id=call_id, attempt=1)
    return engine_pb2.AttachRequest(done=engine_pb2.AttemptDone(ref=ref))


async def sent(outbox: Outbox) -> list[engine_pb2.AttachRequest]:
    """All that an outbox has to say."""
    found: list[engine_pb2.AttachRequest] = []

    async def write(event: engine_pb2.AttachRequest) -> None:
        found.append(event)

    outbox.close()
    await asyncio.wait_for(outbox.send_all(write), 5)
    return found


async def test_an_event_goes_to_its_shards_manager_and_what_concerns_all_to_all() -> None:
    shards = Shards()
    one, two = shards.open(), shards.open()
    assert shards.speak(one, 1, 5)
    assert shards.speak(two, 2, 5)
    draining = engine_pb2.AttachRequest(draining=engine_pb2.Draining())
    for event in (done(1), done(2), draining):
        shards.report(event)
    assert await sent(one) == [done(1), draining]
    assert await sent(two) == [done(2), draining]


async def test_what_no_stream_took_goes_to_the_manager_with_the_later_lease() -> None:
    shards = Shards()
    one, two = shards.open(), shards.open()
    shards.speak(one, 1, 5)
    shards.speak(one, 3, 5)
    shards.report(done(1))
    shards.report(done(3))
    assert shards.speak(two, 1, 6)
    assert not shards.speak(one, 1, 5), "its lease is older"
    assert not shards.speaks(one, 1)
    shards.report(done(1, "c-2"))
    assert await sent(two) == [done(1), done(1, "c-2")]
    assert await sent(one) == [done(3)]


async def test_what_nobody_is_there_to_hear_waits() -> None:
    shards = Shards()
    one = shards.open()
    shards.speak(one, 1, 5)
    shards.report(done(1))
    shards.close(one)
    shards.report(done(1, "c-2"))
    assert [ref.call_id for ref in shards.unsent_ends()] == ["c-1", "c-2"]
    two = shards.open()
    assert not shards.speak(two, 1, 4)
    assert shards.speak(two, 1, 6)
    assert await sent(two) == [done(1), done(1, "c-2")]


async def test_where_no_lease_is_told_of_the_last_to_command_is_heard() -> None:
    shards = Shards()
    one, two = shards.open(), shards.open()
    assert shards.speaks(one, 1)
    shards.report(done(1))
    assert shards.speaks(two, 1)
    assert await sent(two) == [done(1)]
    assert shards.speak(two, 1, 1)
    assert not shards.speaks(one, 1), "a lease was told of since"


async def test_a_manager_that_comes_while_the_engine_stops_is_told_all_and_let_go() -> None:
    shards = Shards()
    shards.drain()
    assert shards.drained
    late = shards.open()
    assert late.drained


def test_what_is_oldest_is_forgotten() -> None:
    memory = Memory[int, str]()
    for number in range(KEPT + 1):
        memory.put(number, str(number))
        memory.put(1, "again")
    assert 0 not in memory
    assert memory.get(1) == "again"
    assert memory.get(KEPT) == str(KEPT)
