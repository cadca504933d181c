"""Streams text to variables: one bus message an engine step and session.

What the programs of one step append within a millisecond travels together. Messages are not
awaited: a delta the bus loses is healed by the variable's final value, which carries all of it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import limits
from parrot_runtime.values.bus import TROUBLE, Bus

VERSION: Final = 1
COALESCE_S: Final = 0.001
MESSAGE_CHARS: Final = limits.PART_BYTES // 4
"""Text of one message: four bytes of UTF-8 a character at most."""

log = structlog.get_logger()


class DeltaWriter:
    """Writes deltas of many variables; `append` never waits.

    Use it as an async context manager: leaving it sends what is left.
    """

    def __init__(self, bus: Bus, engine_id: str) -> None:
        self._bus = bus
        self._engine_id = engine_id
        self._pending: dict[str, list[values_pb2.Delta]] = {}
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
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

    def append(
        self,
        delta_subject: str,
        *,
        variable_id: str,
        call_id: str,
        attempt: int,
        offset_bytes: int,
        text: str,
    ) -> None:
        """Adds `text` (whole characters) at `offset_bytes` of the variable."""
        for start in range(0, len(text), MESSAGE_CHARS):
            piece = text[start : start + MESSAGE_CHARS]
            self._pending.setdefault(delta_subject, []).append(
                values_pb2.Delta(
                    variable_id=variable_id,
                    call_id=call_id,
                    attempt=attempt,
                    offset_bytes=offset_bytes,
                    text=piece,
                )
            )
            offset_bytes += len(piece.encode())
        self._wake.set()

    async def flush(self) -> None:
        """Hands all that was appended to the connection. A `Final` published after it arrives after it."""
        async with self._sending:
            pending, self._pending = self._pending, {}
            for subject, deltas in pending.items():
                for message in _messages(self._engine_id, deltas):
                    await self._send(subject, message)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(COALESCE_S)
            self._wake.clear()
            await self.flush()

    async def _send(self, subject: str, message: values_pb2.StepDeltas) -> None:
        try:
            await self._bus.client.publish(subject, message.SerializeToString())
        except TROUBLE as error:
            log.warning("deltas dropped; the final value will heal them", subject=subject, error=repr(error))


def _messages(engine_id: str, deltas: list[values_pb2.Delta]) -> list[values_pb2.StepDeltas]:
    messages: list[values_pb2.StepDeltas] = []
    chars = MESSAGE_CHARS
    for delta in deltas:
        if chars + len(delta.text) > MESSAGE_CHARS:
            messages.append(values_pb2.StepDeltas(version=VERSION, engine_id=engine_id))
            chars = 0
        messages[-1].deltas.append(delta)
        chars += len(delta.text)
    return messages
