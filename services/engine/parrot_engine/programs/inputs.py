"""Reads the variables a program fills: whole where they are there, else as they come.

A variable that is still being produced is read from its session's feed, which hears the bus and,
for what this very engine produces, its own outputs ahead of the bus.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from parrot_engine.programs.script import transformed
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Chunk, Cursor, End, Feeds, SessionFeed

READ_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.25
LOOK_S: Final = 5.0
"""How long the feed may be silent before the value is looked for where finals are kept: an end that
was published while the bus was away is not heard."""


@dataclass(frozen=True, slots=True)
class InputValue:
    """An input's text, and the W3C headers of the span that wrote it."""

    text: str
    trace: Mapping[str, str]


class Inputs:
    """The variables of one program."""

    def __init__(self, finals: Finals, feed: SessionFeed | None) -> None:
        """`feed`: the session's; None where no variable is pending."""
        self._finals = finals
        self._feed = feed
        self._values: dict[str, InputValue] = {}

    @classmethod
    @asynccontextmanager
    async def of(
        cls, program: engine_pb2.RunProgram, finals: Finals, feeds: Feeds, *, pending: Collection[str]
    ) -> AsyncIterator[Inputs]:
        """The program's variables, heard from now on.

        Args:
            pending: those that may not be there yet. They are kept, or the feed would forget one that ends
                before its turn to be read comes, and it would have to be asked for.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """
        if not pending:
            yield cls(finals, None)
            return
        async with feeds.session(program.tenant, program.ref.session_id) as feed:
            with ExitStack() as kept:
                for variable_id in pending:
                    kept.callback(feed.cursor(variable_id).close)
                yield cls(finals, feed)

    async def look(self, source: engine_pb2.VariableSource) -> InputValue | None:
        """The variable's whole value, or None while it is pending.

        Raises:
            Fault: `value_unavailable`, when it has none and is not pending, or the bus does not
                answer for `READ_TIMEOUT_S`; `upstream_failed`, when it ended without a value.
        """
        known = self._values.get(source.variable_id)
        if known is None:
            record = self._heard(source) or await self._read_patiently(source)
            if record is None and source.pending:
                return None
            known = self._take(source, record)
        return known

    async def pieces(self, source: engine_pb2.VariableSource) -> AsyncGenerator[str, None]:
        """The text of a pending variable as it comes, to its end; all at once if it is transformed.

        Raises:
            Fault: as `look`.
        """
        if self._feed is None:
            raise _unavailable(source, "is not on the bus")
        self._feed.catch_up_once()
        cursor = self._feed.cursor(source.variable_id)
        pieces: list[str] = []
        try:
            while (item := await self._next(self._feed, cursor, source)) is not None:
                pieces.append(item)
                if not source.transforms:
                    yield item
        finally:
            cursor.close()
        value = self._values[source.variable_id]
        if source.transforms:
            yield await transformed(value.text, source.transforms, source.variable_id)
        elif "".join(pieces) != value.text:
            raise _unavailable(source, "ended as another text than was streamed")

    def has_ended(self, source: engine_pb2.VariableSource) -> bool:
        """The variable's end is known, though its last piece may not have been read."""
        return self._feed is not None and self._feed.has_ended(source.variable_id)

    def traces(self) -> Mapping[str, Mapping[str, str]]:
        """By variable, the W3C headers of the span that wrote it, as far as they are known."""
        return {variable_id: value.trace for variable_id, value in self._values.items()}

    async def _next(self, feed: SessionFeed, cursor: Cursor, source: engine_pb2.VariableSource) -> str | None:
        """The next text; None at the end, whose value is then known."""
        while True:
            forgotten = feed.forgotten(source.variable_id)
            item = await _news(cursor, source, 0 if forgotten else LOOK_S)
            if isinstance(item, End):
                self._take(source, item.record)
                return None
            if item is not None:
                return item.text
            record = await self._read_patiently(source)
            if record is not None:
                feed.resolve(record)
            elif forgotten:
                raise _unavailable(source, "is no longer on the bus")

    def _heard(self, source: engine_pb2.VariableSource) -> FinalRecord | None:
        return self._feed.end_of(source.variable_id) if self._feed is not None else None

    def _take(self, source: engine_pb2.VariableSource, record: FinalRecord | None) -> InputValue:
        if record is None:
            raise _unavailable(source, "is not on the bus")
        if record.text is None:
            if not source.pending:
                raise _unavailable(source, "ended without a value")
            raise Fault(
                errors.UPSTREAM_FAILED,
                f"the input {source.variable_id} ended without a value",
                variable_id=source.variable_id,
                cause_type=record.failure.type if record.failure is not None else errors.CANCELLED.type,
                cause_call_id=record.call_id,
            )
        value = self._values[source.variable_id] = InputValue(record.text, record.trace)
        return value

    async def _read_patiently(self, source: engine_pb2.VariableSource) -> FinalRecord | None:
        """Reads through a restart of the bus."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                return await self._finals.read(source.final_subject)
            except Fault as fault:
                if time.monotonic() >= deadline:
                    raise _unavailable(source, f"can't be read: {fault.message}") from fault
                await asyncio.sleep(RETRY_S)


async def _news(cursor: Cursor, source: engine_pb2.VariableSource, within_s: float) -> Chunk | End | None:
    """What the cursor has next; None: nothing yet, or the bus is away."""
    try:
        return await cursor.next(within_s)
    except Fault as fault:
        if fault.kind is errors.UNAVAILABLE:
            return None
        raise _unavailable(source, "ended as another text than was streamed") from fault
    except UnicodeDecodeError:
        raise _unavailable(source, "went on as another text than was streamed") from None


def _unavailable(source: engine_pb2.VariableSource, what: str) -> Fault:
    return Fault(
        errors.VALUE_UNAVAILABLE,
        f"the value of variable {source.variable_id} {what}; submit the call again",
        variable_id=source.variable_id,
    )
