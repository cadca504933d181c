"""Final values: written once, acknowledged, kept one a variable, read by subject.

A value larger than a bus message travels in parts: they are published before the `Final` that
announces them, so whoever sees a `Final` finds its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import structlog

from parrot_proto.common.v1 import common_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors, limits, telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import FINAL_AGE_S, TROUBLE, Bus
from parrot_runtime.values.fences import BUSY_S, EPOCH_HEADER, FencedError, Mark, is_busy, refused

VERSION: Final = 1
PUBLISH_TIMEOUT_S: Final = 60.0
TAKEN_WITHIN_S: Final = 2.0
_RETRY_S: Final = 0.25
_AGE: Final = {"Nats-TTL": str(FINAL_AGE_S)}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """A variable's end: exactly one of `text`, `failure` and `cancelled` is set.

    Attributes:
        call_id: who produced it; empty when a client set it.
        attempt: the producing attempt; 0 when a client set it.
        trace: W3C headers of the span that wrote it.
        finish_reason: why a model's text ended there: stop, length or stop_text; empty: no model made it.
    """

    variable_id: str
    call_id: str = ""
    attempt: int = 0
    text: str | None = None
    failure: common_pb2.Failure | None = None
    cancelled: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = ""

    def __post_init__(self) -> None:
        if [self.text, self.failure, self.cancelled].count(None) != 2:
            raise ValueError("a variable ends with exactly one of text, failure and cancelled")


@dataclass(frozen=True, slots=True)
class _Writing:
    """What the messages of one end share. `deadline`: of the monotonic clock."""

    mark: Mark | None
    deadline: float


class Finals:
    """Publishes and reads final values over one bus connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(
        self,
        final_subject: str,
        record: FinalRecord,
        *,
        mark: Mark | None = None,
        timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        """Returns once the server has it. Publishing the same end twice leaves one.

        Raises:
            FencedError: the engine whose `mark` this is was given up.
            Fault: `unavailable`, when the bus does not take it within `timeout_s`.
        """
        writing = _Writing(mark, time.monotonic() + timeout_s)
        message = values_pb2.Final(
            version=VERSION,
            variable_id=record.variable_id,
            call_id=record.call_id,
            attempt=record.attempt,
            finish_reason=record.finish_reason,
        )
        if record.text is not None:
            await self._publish_parts(final_subject, record, message, writing)
        elif record.failure is not None:
            message.failure.CopyFrom(record.failure)
        else:
            message.cancelled.reason = record.cancelled or ""
        await self._put_of(record, final_subject, message.SerializeToString(), "final", writing)

    async def publish_rollout(
        self,
        final_subject: str,
        rollout: values_pb2.Rollout,
        *,
        mark: Mark | None = None,
        timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        """Publishes one part of a rollout; returns once the server has it.

        Raises:
            FencedError: the engine whose `mark` this is was given up.
            Fault: `unavailable`, when the bus does not take it within `timeout_s`.
        """
        subject = subjects.rollout(final_subject, rollout.part)
        headers = {"Nats-Msg-Id": f"{subject}/{rollout.attempt}", **telemetry.inject(), **_marked(mark)}
        deadline = time.monotonic() + timeout_s
        await self._put(subject, rollout.SerializeToString(), headers, rollout.variable_id, deadline)

    async def read_rollout(self, final_subject: str) -> list[values_pb2.Rollout]:
        """The parts of an output's rollout, in order; none when it has none, or one is gone.

        Raises:
            Fault: `unavailable`, when the bus does not answer.
        """
        parts: list[values_pb2.Rollout] = []
        while not parts or len(parts) < parts[0].parts:
            got = await self._get(subjects.rollout(final_subject, len(parts)))
            if got is None:
                return []
            parts.append(values_pb2.Rollout.FromString(got[0]))
        return parts

    async def read(self, final_subject: str) -> FinalRecord | None:
        """The variable's end, or None when it has none on the bus (yet, or any more).

        Raises:
            Fault: `unavailable`, when the bus does not answer.
        """
        got = await self._get(final_subject)
        if got is None:
            return None
        data, headers = got
        return await self.complete(final_subject, values_pb2.Final.FromString(data), headers)

    async def complete(
        self, final_subject: str, message: values_pb2.Final, headers: Mapping[str, str]
    ) -> FinalRecord | None:
        """The record a `Final` announces, with the parts of its value fetched; None when one is gone."""
        kind = message.WhichOneof("outcome")
        text = None
        if kind == "value":
            data = await self._gather_parts(final_subject, message)
            if data is None:
                return None
            text = data.decode()
        return FinalRecord(
            variable_id=message.variable_id,
            call_id=message.call_id,
            attempt=message.attempt,
            text=text,
            failure=message.failure if kind == "failure" else None,
            cancelled=message.cancelled.reason if kind == "cancelled" else None,
            trace={key: value for key, value in headers.items() if key in {"traceparent", "tracestate"}},
            finish_reason=message.finish_reason,
        )

    async def _publish_parts(
        self,
        final_subject: str,
        record: FinalRecord,
        message: values_pb2.Final,
        writing: _Writing,
    ) -> None:
        data = (record.text or "").encode()
        cuts = [data[i : i + limits.PART_BYTES] for i in range(0, len(data), limits.PART_BYTES)] or [b""]
        message.value.size_bytes = len(data)
        message.value.parts = len(cuts)
        message.value.first_part = cuts[0]
        for index, cut in enumerate(cuts[1:], start=1):
            piece = values_pb2.FinalPart(
                version=VERSION,
                variable_id=record.variable_id,
                attempt=record.attempt,
                index=index,
                data=cut,
            )
            await self._put_of(
                record,
                subjects.part(final_subject, index),
                piece.SerializeToString(),
                f"part{index}",
                writing,
            )

    async def _gather_parts(self, final_subject: str, message: values_pb2.Final) -> bytes | None:
        value = message.value
        got = await asyncio.gather(
            *(self._get(subjects.part(final_subject, index)) for index in range(1, value.parts))
        )
        pieces = [value.first_part]
        for raw in got:
            if raw is None:
                return None
            piece = values_pb2.FinalPart.FromString(raw[0])
            if piece.attempt != message.attempt:
                return None
            pieces.append(piece.data)
        data = b"".join(pieces)
        return data if len(data) == value.size_bytes else None

    async def _put_of(
        self,
        record: FinalRecord,
        subject: str,
        payload: bytes,
        what: str,
        writing: _Writing,
    ) -> None:
        headers = {
            "Nats-Msg-Id": f"{subject}/{record.attempt}/{what}",
            **(record.trace or telemetry.inject()),
            **_marked(writing.mark),
        }
        await self._put(subject, payload, headers, record.variable_id, writing.deadline)

    async def _put(
        self, subject: str, payload: bytes, headers: dict[str, str], variable_id: str, deadline: float
    ) -> None:
        while True:
            try:
                await self._publish(subject, payload, headers)
            except TROUBLE as error:
                if refused(error):
                    raise FencedError(f"the bus refuses what is written to {subject}") from None
                if time.monotonic() >= deadline:
                    raise Fault(
                        errors.UNAVAILABLE,
                        "the bus does not take a variable's value; is NATS running?",
                        variable_id=variable_id,
                    ) from error
                if not is_busy(error):
                    log.warning("publish retried", subject=subject, error=repr(error))
                await asyncio.sleep(BUSY_S if is_busy(error) else _RETRY_S)
            else:
                return

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        async with self._turn(headers.get(EPOCH_HEADER)):
            await self._bus.publish(subject, payload, headers, TAKEN_WITHIN_S)

    def _turn(self, epoch_subject: str | None) -> AbstractAsyncContextManager[None]:
        if epoch_subject is None or not self._bus.is_replicated:
            return contextlib.nullcontext()
        return self._bus.turn(epoch_subject)

    async def _get(self, subject: str) -> tuple[bytes, Mapping[str, str]] | None:
        try:
            message = await self._bus.last(subjects.FINAL_STREAM, subject)
        except TROUBLE as error:
            raise Fault(
                errors.UNAVAILABLE, f"the bus does not answer ({error!r}); is NATS running?"
            ) from error
        return None if message is None else (message.data or b"", message.headers or {})


def _marked(mark: Mark | None) -> dict[str, str]:
    """The headers every final bears: its age limit, and its writer's mark."""
    return {**_AGE, **(mark.of_finals if mark is not None else {})}
