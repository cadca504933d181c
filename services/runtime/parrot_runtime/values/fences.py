"""Keeps an engine that was given up from writing on: the bus itself refuses what it sends.

For every shard and engine each of the two streams keeps one message, on the engine's epoch subject.
The engine marks what it writes with that message's sequence, and the server takes a write only while
the sequence is the last one there: whoever puts another message on the subject fences the engine off.

A grant stays for as long as nobody supersedes it. What fences an engine may go with age: then the
subject is empty, and a mark that names a sequence is refused all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import structlog
from nats.js.errors import APIError

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import DELTA_AGE_S, FINAL_AGE_S, TROUBLE, Bus

WRONG_LAST_SEQUENCE: Final = 10071
"""The server's code for a write whose expected sequence is not the last."""
IN_PROCESS: Final = 10164
"""Its code for one that comes while another, which could change what is last, is under way: with replicas."""
BUSY_S: Final = 0.005
PUBLISH_S: Final = 2.0
RETRY_S: Final = 0.25
EPOCH_HEADER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_GRANTED: Final = b"granted"
_FENCED: Final = b"fenced"

log = structlog.get_logger()


class FencedError(Exception):
    """The bus refused a write: its writer was given up."""


@dataclass(frozen=True, slots=True)
class Mark:
    """With what an engine marks its writes to the subjects of one shard."""

    engine_id: str
    shard: int
    delta_sequence: int
    final_sequence: int

    @property
    def of_deltas(self) -> dict[str, str]:
        """Headers of a step's deltas."""
        return _expecting(self.delta_sequence, subjects.delta_epoch(self.shard, self.engine_id))

    @property
    def of_finals(self) -> dict[str, str]:
        """Headers of a final, its parts, and a rollout."""
        return _expecting(self.final_sequence, subjects.final_epoch(self.shard, self.engine_id))


class Fences:
    """What the manager of a shard does about an engine's epochs there.

    What is asked about one engine is done in the order it was asked in.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def epochs(self, engine_id: str, shards: Iterable[int]) -> dict[int, Mark]:
        """The engine's marks, by shard: those it has, or new ones where it has none or was fenced.

        Raises:
            Fault: `unavailable`, when the bus does not answer.
        """
        try:
            async with self._turn(engine_id):
                marks = await asyncio.gather(*(self._mark(engine_id, shard) for shard in shards))
        except TROUBLE as error:
            raise Fault(
                errors.UNAVAILABLE, f"the bus does not answer ({error!r}); is NATS running?"
            ) from error
        return {mark.shard: mark for mark in marks}

    async def fence(
        self, engine_id: str, shards: Iterable[int], due: Callable[[int], bool] = lambda shard: True
    ) -> None:
        """Returns once the bus refuses what the engine writes under the marks it has.

        Waits as long as the bus is away, for those shards for which it is still `due`.
        """
        async with self._turn(engine_id):
            await asyncio.gather(
                *(
                    self._supersede(subject, age_s, partial(due, shard))
                    for shard in shards
                    for subject, age_s in (
                        (subjects.delta_epoch(shard, engine_id), DELTA_AGE_S),
                        (subjects.final_epoch(shard, engine_id), FINAL_AGE_S),
                    )
                )
            )

    def _turn(self, engine_id: str) -> asyncio.Lock:
        return self._turns.setdefault(engine_id, asyncio.Lock())

    async def _mark(self, engine_id: str, shard: int) -> Mark:
        delta_sequence, final_sequence = await asyncio.gather(
            self._granted(subjects.DELTA_STREAM, subjects.delta_epoch(shard, engine_id)),
            self._granted(subjects.FINAL_STREAM, subjects.final_epoch(shard, engine_id)),
        )
        return Mark(engine_id, shard, delta_sequence, final_sequence)

    async def _granted(self, stream: str, subject: str) -> int:
        """The sequence of the grant there is, or of a new one."""
        while True:
            found = await self._last(stream, subject)
            sequence, payload = found if found is not None else (0, b"")
            if payload == _GRANTED:
                return sequence
            headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(sequence)}
            try:
                granted = await self._bus.publish(subject, _GRANTED, headers, PUBLISH_S)
            except APIError as error:
                # Otherwise another manager, whose shard this was or will be, came before, or is just coming.
                if is_busy(error):
                    await asyncio.sleep(BUSY_S)
                elif not refused(error):
                    raise
            else:
                return granted.seq

    async def _last(self, stream: str, subject: str) -> tuple[int, bytes] | None:
        message = await self._bus.last(stream, subject)
        return None if message is None else (message.seq or 0, message.data or b"")

    async def _supersede(self, subject: str, age_s: int, due: Callable[[], bool]) -> None:
        headers = {"Nats-Rollup": "sub", "Nats-TTL": str(age_s)}
        while due():
            try:
                await self._bus.publish(subject, _FENCED, headers, PUBLISH_S)
            except TROUBLE as error:
                log.warning("engine not fenced yet", subject=subject, error=repr(error))
                await asyncio.sleep(RETRY_S)
            else:
                return


def refused(error: BaseException) -> bool:
    """Whether an error says that a mark is no longer the last."""
    return isinstance(error, APIError) and error.err_code == WRONG_LAST_SEQUENCE


def is_busy(error: BaseException) -> bool:
    """Whether an error says that another write under the same mark is under way."""
    return isinstance(error, APIError) and error.err_code == IN_PROCESS


def _expecting(sequence: int, subject: str) -> dict[str, str]:
    return {"Nats-Expected-Last-Subject-Sequence": str(sequence), EPOCH_HEADER: subject}
