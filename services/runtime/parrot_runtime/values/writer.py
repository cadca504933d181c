"""Streams text to variables: one bus message an interval and session, and at once what is waited for most.

What is appended in the turns of the event loop that take an engine step's outputs in travels together, and
so does what comes until the interval is over: each message costs the bus, the gateway and every reader
some arithmetic, which on a CPU is taken from the model's. To a single server messages are not awaited: a
delta it loses is healed by the variable's final value, which carries all of it. To replicas they go by
`lanes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.bus import TROUBLE, Bus
from parrot_runtime.values.fences import Mark, refused
from parrot_runtime.values.lanes import MESSAGE_CHARS, VERSION, Lanes, headers_of, messages_of

MOST_TURNS: Final = 16
"""Turns of the event loop that text waits for more, at most."""
SETTLE_S: Final = 60.0
_RETRY_S: Final = 0.25

_Way = tuple[str, Mark | None]
"""A subject, and the mark that what is written there bears."""

log = structlog.get_logger()


class DeltaWriter:
    """Writes deltas of many variables; `append` never waits.

    Use it as an async context manager: leaving it sends what is left.
    """

    def __init__(self, bus: Bus, engine_id: str, interval_s: float = 0.0) -> None:
        """`interval_s`: how long text may wait for more of it; 0: it is sent step by step."""
        self._bus = bus
        self._engine_id = engine_id
        self._interval_s = interval_s
        self._pending: dict[_Way, list[values_pb2.Delta]] = {}
        self._hurried: set[_Way] = set()
        self._due = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._appended = 0
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
        self._lanes = Lanes(bus, engine_id)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="delta-writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._tick is not None:
            self._tick.cancel()
        await self.flush()
        await self._lanes.close()

    def append(
        self,
        delta_subject: str,
        *,
        variable_id: str,
        call_id: str,
        attempt: int,
        offset_bytes: int,
        text: str,
        mark: Mark | None = None,
        hurried: bool = False,
    ) -> None:
        """Adds `text` (whole characters) at `offset_bytes` of the variable.

        Args:
            mark: of the engine; once that is fenced, the bus drops what bears it.
            hurried: it does not wait for more; nor does what its subject has waiting.
        """
        way = (delta_subject, mark)
        if hurried:
            self._hurried.add(way)
        for start in range(0, len(text), MESSAGE_CHARS):
            piece = text[start : start + MESSAGE_CHARS]
            self._pending.setdefault(way, []).append(
                values_pb2.Delta(
                    variable_id=variable_id,
                    call_id=call_id,
                    attempt=attempt,
                    offset_bytes=offset_bytes,
                    text=piece,
                )
            )
            offset_bytes += len(piece.encode())
        self._appended += 1
        if hurried or self._tick is None:
            self._wake.set()

    async def flush(self, delta_subject: str | None = None) -> None:
        """Hands on all that was appended, for one subject or for each.

        To a single server a `Final` published after it comes after it.
        """
        await self._hand_on(lambda way: delta_subject in (None, way[0]))

    async def _hand_on(self, wanted: Callable[[_Way], bool]) -> None:
        async with self._sending:
            pending = {way: deltas for way, deltas in self._pending.items() if wanted(way)}
            for way in pending:
                del self._pending[way]
                self._hurried.discard(way)
            for (subject, mark), deltas in pending.items():
                if self._bus.is_replicated:
                    self._lanes.add(subject, mark, deltas)
                    continue
                for message in messages_of(self._engine_id, deltas):
                    await self._send(subject, message, headers_of(mark))

    async def settle(self, delta_subject: str, mark: Mark | None = None) -> None:
        """Returns once the bus has taken or refused all that was appended for a subject.

        A bus that stays away is waited for `SETTLE_S` long.
        """
        await self.flush(delta_subject)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._lanes.drained(mark)
                if not self._bus.is_replicated:
                    await self._answered(delta_subject, headers_of(mark))
        except TimeoutError:
            log.warning("deltas may come late: the bus is away", subject=delta_subject)

    async def _answered(self, subject: str, headers: dict[str, str]) -> None:
        """The stream takes a connection's messages in order: this one's answer is that of all before it."""
        nothing = values_pb2.StepDeltas(version=VERSION, engine_id=self._engine_id).SerializeToString()
        while not await self._taken(subject, nothing, headers):  # noqa: ASYNC110 - a server
            await asyncio.sleep(_RETRY_S)

    async def _taken(self, subject: str, payload: bytes, headers: dict[str, str]) -> bool:
        try:
            await self._bus.js.publish(subject, payload, timeout=2, headers=headers)
        except TROUBLE as error:
            return refused(error)
        return True

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await self._settle()
            self._wake.clear()
            now = asyncio.get_running_loop().time()
            if now >= self._due:
                self._due = now + self._interval_s
                await self.flush()
            elif self._hurried:
                await self._hand_on(self._hurried.copy().__contains__)
            if self._pending:
                self._wake_when_due()

    def _wake_when_due(self) -> None:
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_at(self._due, self._ticked)

    def _ticked(self) -> None:
        # It may be early by the clock's resolution: another one is set then.
        self._tick = None
        self._wake.set()

    async def _settle(self) -> None:
        """Returns once a turn of the event loop has brought nothing more."""
        for _ in range(MOST_TURNS):
            seen = self._appended
            await asyncio.sleep(0)
            if self._appended == seen:
                return

    async def _send(self, subject: str, message: values_pb2.StepDeltas, headers: dict[str, str]) -> None:
        try:
            await self._bus.client.publish(subject, message.SerializeToString(), headers=headers)
        except TROUBLE as error:
            log.warning("deltas dropped; the final value will heal them", subject=subject, error=repr(error))
