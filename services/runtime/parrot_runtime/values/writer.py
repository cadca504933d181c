"""Streams text to variables: one bus message an engine step and session.

What is appended in the turns of the event loop that take an engine step's outputs in travels together:
no timer is waited for, which would wake the process once more a step. To a single server messages are not
awaited: a delta it loses is healed by the variable's final value, which carries all of it. To replicas
they go by `lanes`.
"""

from __future__ import annotations

import asyncio
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

log = structlog.get_logger()


class DeltaWriter:
    """Writes deltas of many variables; `append` never waits.

    Use it as an async context manager: leaving it sends what is left.
    """

    def __init__(self, bus: Bus, engine_id: str) -> None:
        self._bus = bus
        self._engine_id = engine_id
        self._pending: dict[tuple[str, Mark | None], list[values_pb2.Delta]] = {}
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
    ) -> None:
        """Adds `text` (whole characters) at `offset_bytes` of the variable.

        `mark`: of the engine; once that is fenced, the bus drops what bears it.
        """
        for start in range(0, len(text), MESSAGE_CHARS):
            piece = text[start : start + MESSAGE_CHARS]
            self._pending.setdefault((delta_subject, mark), []).append(
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
        self._wake.set()

    async def flush(self) -> None:
        """Hands all that was appended on. To a single server a `Final` published after it comes after it."""
        async with self._sending:
            pending, self._pending = self._pending, {}
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
        await self.flush()
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
            await self.flush()

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
