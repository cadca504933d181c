"""Deltas on their way to replicas: each written until it is taken, in order, and one write at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import nats.errors
import pytest
from nats.js.errors import BadRequestError

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values import lanes as lanes_module
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.fences import IN_PROCESS, WRONG_LAST_SEQUENCE, Mark
from parrot_runtime.values.lanes import Lanes

pytestmark = pytest.mark.anyio

MARK = Mark("e", 3, 7, 8)
Trouble = Callable[[dict[str, str]], BaseException | None]


class Stream:
    """A stream with replicas, as its one writer sees it.

    Attributes:
        taken: the offsets of the deltas that it took, in order, of each write.
        at_once: the most writes that were ever under way.
    """

    def __init__(self, trouble: Trouble = lambda headers: None) -> None:
        self.taken: list[list[int]] = []
        self.at_once = 0
        self._under_way = 0
        self._batch: list[int] = []
        self._trouble = trouble

    def bus(self) -> Bus:
        return Bus(cast("Any", Client(self)), cast("Any", self), replicas=3)

    async def publish(self, subject: str, payload: bytes, timeout: float, headers: dict[str, str]) -> None:
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        batch, self._batch = [*self._batch, *offsets(payload)], []
        if (error := self._trouble(headers)) is not None:
            raise error
        self.taken.append(batch)

    @property
    def all_taken(self) -> list[int]:
        return [offset for batch in self.taken for offset in batch]

    def stage(self, payload: bytes) -> None:
        self._batch += offsets(payload)


class Client:
    """The connection, where a batch's first messages go unanswered."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self._stream.stage(payload)


def offsets(payload: bytes) -> list[int]:
    return [delta.offset_bytes for delta in values_pb2.StepDeltas.FromString(payload).deltas]


def delta(offset: int) -> values_pb2.Delta:
    return values_pb2.Delta(variable_id="v", attempt=1, offset_bytes=offset, text="a")


def troubles(*errors: BaseException) -> Trouble:
    """Each write fails with the next of them, until there are none left."""
    left = list(errors)
    return lambda headers: left.pop(0) if left else None


async def test_nothing_is_lost_that_comes_just_as_a_lane_ends() -> None:
    stream = Stream()
    lanes = Lanes(stream.bus(), "e")
    for offset in range(200):
        lanes.add("s", MARK, [delta(offset)])
        # Of every number of turns there are until the lane has ended.
        for _ in range(offset % 12):
            await asyncio.sleep(0)
    await lanes.drained(MARK)
    assert stream.all_taken == list(range(200))
    assert stream.at_once == 1


async def test_what_comes_while_a_write_is_under_way_is_the_next_one() -> None:
    stream = Stream()
    lanes = Lanes(stream.bus(), "e")
    lanes.add("s1", MARK, [delta(0)])
    await asyncio.sleep(0)
    for offset in range(1, 5):
        lanes.add("s1", MARK, [delta(offset)])
        lanes.add("s2", MARK, [delta(10 + offset)])
    await lanes.drained(MARK)
    assert stream.taken == [[0], [1, 2, 3, 4, 11, 12, 13, 14]]


async def test_what_others_add_meanwhile_is_not_waited_for() -> None:
    stream = Stream()
    lanes = Lanes(stream.bus(), "e")
    lanes.add("s", MARK, [delta(0)])
    draining = asyncio.create_task(lanes.drained(MARK))
    for offset in range(1, 100):
        lanes.add("other", MARK, [delta(offset)])
        await asyncio.sleep(0)
    assert draining.done()
    assert 0 in stream.all_taken
    await lanes.close()


async def test_draining_ends_with_a_lane_that_is_refused() -> None:
    stream = Stream(troubles(BadRequestError(err_code=WRONG_LAST_SEQUENCE)))
    lanes = Lanes(stream.bus(), "e")
    lanes.add("s", MARK, [delta(0)])
    await asyncio.wait_for(lanes.drained(MARK), 5)
    assert stream.all_taken == []


@pytest.mark.parametrize(
    "trouble",
    [
        nats.errors.TimeoutError(),
        nats.errors.NoRespondersError(),
        BadRequestError(err_code=IN_PROCESS),
        OSError(),
    ],
)
async def test_what_was_not_taken_is_written_again_in_order(
    trouble: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "_RETRY_S", 0)
    stream = Stream(troubles(trouble, trouble))
    lanes = Lanes(stream.bus(), "e")
    for session in range(3):
        lanes.add(f"s{session}", MARK, [delta(session)])
    await lanes.drained(MARK)
    assert stream.all_taken == [0, 1, 2]


async def test_an_engine_that_was_given_up_writes_no_more_under_its_mark() -> None:
    stream = Stream(troubles(BadRequestError(err_code=WRONG_LAST_SEQUENCE)))
    lanes = Lanes(stream.bus(), "e")
    lanes.add("s", MARK, [delta(0)])
    await asyncio.sleep(0)
    lanes.add("s", MARK, [delta(1)])
    await lanes.drained(MARK)
    assert stream.taken == []


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "BATCH_MESSAGES", 2)
    stream = Stream()
    lanes = Lanes(stream.bus(), "e")
    for session in range(5):
        lanes.add(f"s{session}", MARK, [delta(session)])
    await lanes.drained(MARK)
    assert [len(batch) for batch in stream.taken] == [2, 2, 1]


async def test_text_that_waits_for_a_bus_that_is_away_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "WAITING_BYTES", 10)
    stream = Stream()
    lanes = Lanes(stream.bus(), "e")
    for offset in range(20):
        lanes.add("s", MARK, [delta(offset)])
    await lanes.drained(MARK)
    assert stream.all_taken == list(range(10))
