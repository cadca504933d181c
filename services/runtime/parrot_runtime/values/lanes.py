"""Deltas on their way to streams that have replicas.

Such a stream takes one write under a mark at a time, and between a leader and the next it takes none and
tells nobody of what it loses. So everything is acknowledged here: what comes while a write is under way
is the next one, a batch that the stream takes as one, and what was not acknowledged is written again.
Readers, who count in bytes, don't mind what they hear twice.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import structlog

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import limits
from parrot_runtime.values.bus import DELTA_AGE_S, TROUBLE, Bus
from parrot_runtime.values.bus_client import end
from parrot_runtime.values.fences import BUSY_S, Mark, is_busy, refused

VERSION: Final = 1
MESSAGE_CHARS: Final = limits.PART_BYTES // 4
"""Text of one message: four bytes of UTF-8 a character at most."""
BATCH_MESSAGES: Final = 256
BATCH_BYTES: Final = 512 << 10
WAITING_BYTES: Final = 16 << 20
"""Text that waits for a bus that is away, for each mark; the rest is left to the final value."""
TAKEN_WITHIN_S: Final = 2.0
GIVE_UP_S: Final = 60.0
CLOSE_S: Final = 2.0
_RETRY_S: Final = 0.1
_AGE: Final = {"Nats-TTL": str(DELTA_AGE_S)}

Message = tuple[str, bytes]
"""A subject and what is written there."""

log = structlog.get_logger()


def headers_of(mark: Mark | None) -> dict[str, str]:
    """What every step message bears: its age limit, and its writer's mark."""
    return {**_AGE, **(mark.of_deltas if mark is not None else {})}


def messages_of(engine_id: str, deltas: Iterable[values_pb2.Delta]) -> list[values_pb2.StepDeltas]:
    """Deltas of one session, in as few messages as may be."""
    messages: list[values_pb2.StepDeltas] = []
    chars = MESSAGE_CHARS
    for delta in deltas:
        if chars + len(delta.text) > MESSAGE_CHARS:
            messages.append(values_pb2.StepDeltas(version=VERSION, engine_id=engine_id))
            chars = 0
        messages[-1].deltas.append(delta)
        chars += len(delta.text)
    return messages


class Lanes:
    """The lanes of one writer, by mark; each is there while something waits in it."""

    def __init__(self, bus: Bus, engine_id: str) -> None:
        self._bus = bus
        self._engine_id = engine_id
        self._lanes: dict[Mark | None, _Lane] = {}

    def add(self, subject: str, mark: Mark | None, deltas: list[values_pb2.Delta]) -> None:
        """Has deltas written; does not wait."""
        lane = self._lanes.get(mark)
        if lane is None or lane.task.done():
            lane = self._lanes[mark] = _Lane(self._bus, self._engine_id, mark)
            lane.task.add_done_callback(partial(self._forget, mark))
        lane.add(subject, deltas)

    def _forget(self, mark: Mark | None, task: asyncio.Task[None]) -> None:
        lane = self._lanes.get(mark)
        # What came between its end and this is in another one.
        if lane is not None and lane.task is task:
            del self._lanes[mark]

    async def drained(self, mark: Mark | None) -> None:
        """Returns once the bus has taken or refused all that was added under a mark until now."""
        if (lane := self._lanes.get(mark)) is not None:
            await lane.drained()

    async def close(self) -> None:
        """Waits a moment for what is under way, and ends."""
        tasks = [lane.task for lane in self._lanes.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            await asyncio.gather(*map(end, late))


class _Lane:
    """What is written under one mark."""

    def __init__(self, bus: Bus, engine_id: str, mark: Mark | None) -> None:
        self._bus = bus
        self._engine_id = engine_id
        self._headers = headers_of(mark)
        self._waiting: dict[str, list[values_pb2.Delta]] = {}
        self._waiting_bytes = 0
        # Set when what waits now was written; and of what is being written.
        self._next, self._under_way = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run(), name="delta-lane")

    def add(self, subject: str, deltas: list[values_pb2.Delta]) -> None:
        size = sum(len(delta.text.encode()) for delta in deltas)
        if self._waiting_bytes + size > WAITING_BYTES:
            log.warning("deltas dropped; the final value will heal them", subject=subject, reason="too many")
            return
        self._waiting_bytes += size
        self._waiting.setdefault(subject, []).extend(deltas)

    async def drained(self) -> None:
        """Returns once all until now is written, whatever comes behind it, or the lane has ended."""
        written = self._next if self._waiting else self._under_way
        writing = asyncio.create_task(written.wait(), name="delta-drain")
        try:
            await asyncio.wait((writing, self.task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
            self._under_way, self._next = self._next, asyncio.Event()
            messages = [
                (subject, message.SerializeToString())
                for subject, deltas in waiting.items()
                for message in messages_of(self._engine_id, deltas)
            ]
            for batch in _batches(messages):
                if not await self._write(batch):
                    # Whoever wrote this was given up: all that bears the mark is refused.
                    self._waiting.clear()
                    return
            self._under_way.set()

    async def _write(self, batch: list[Message]) -> bool:
        """Returns once the stream has a batch; False: it refuses the mark."""
        deadline = time.monotonic() + GIVE_UP_S
        write = self._write_at_once
        while True:
            try:
                await write(batch)
            except TROUBLE as error:
                if refused(error):
                    return False
                if time.monotonic() > deadline:
                    log.warning("deltas dropped; the final value will heal them", error=repr(error))
                    return True
                await asyncio.sleep(BUSY_S if is_busy(error) else _RETRY_S)
                # A message that the stream never takes keeps those before it from nothing then.
                write = self._write_singly
            else:
                return True

    async def _write_at_once(self, batch: list[Message]) -> None:
        *first, last = batch
        bearing = self._headers
        if first:
            bearing = {**bearing, "Nats-Batch-Id": secrets.token_hex(8)}
            for number, (subject, payload) in enumerate(first, 1):
                numbered = {**bearing, "Nats-Batch-Sequence": str(number)}
                await self._bus.client.publish(subject, payload, headers=numbered)
            bearing |= {"Nats-Batch-Sequence": str(len(batch)), "Nats-Batch-Commit": "1"}
        await self._publish(*last, bearing)

    async def _write_singly(self, batch: list[Message]) -> None:
        while batch:
            await self._publish(*batch[0], self._headers)
            del batch[0]

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._bus.publish(subject, payload, dict(headers), TAKEN_WITHIN_S)


def _batches(messages: list[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        size += len(message[1])
        if batch and (size > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
            yield batch
            batch, size = [], len(message[1])
        batch.append(message)
    if batch:
        yield batch
