"""What is known of a variable, and a reader's place in it.

Offsets, in bytes of UTF-8, are the truth: what is there already is dropped, and what would leave a gap is
not taken. A slow reader holds nothing but its offset.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord

if TYPE_CHECKING:
    from parrot_runtime.values.reader import SessionFeed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text that was added at `offset_bytes`; never half a character."""

    offset_bytes: int
    text: str

    @property
    def end_bytes(self) -> int:
        """Where the next chunk starts."""
        return self.offset_bytes + len(self.text.encode())


@dataclass(frozen=True, slots=True)
class End:
    """The variable's end; nothing follows."""

    record: FinalRecord


@dataclass(slots=True)
class Buffer:
    """What is known of one variable: its text so far, and its end.

    Attributes:
        cursors: those that read it now.
        base_bytes: where `data` begins: what was before it went with its age.
        reach_bytes: the furthest that text was heard of, be it here or not.
        on_bus: its end was heard on the bus, where it can be read again.
    """

    data: bytearray = field(default_factory=bytearray)
    base_bytes: int = 0
    reach_bytes: int = 0
    attempt: int = 0
    announced: tuple[values_pb2.Final, dict[str, str]] | None = None
    end: FinalRecord | None = None
    cursors: int = 0
    on_bus: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def size_bytes(self) -> int:
        """How far its text goes."""
        return self.base_bytes + len(self.data)

    def add(self, delta: values_pb2.Delta, *, aged: bool = False) -> bool:
        """Takes in a delta; False when text before it is missing, unless that has `aged` away."""
        if delta.attempt < self.attempt or self.end is not None:
            return True
        text = delta.text.encode()
        self.reach_bytes = max(self.reach_bytes, delta.offset_bytes + len(text))
        if aged and not self.size_bytes:
            self.base_bytes = delta.offset_bytes
        have = self.size_bytes
        if delta.offset_bytes > have:
            return False
        self.attempt = delta.attempt
        new = text[have - delta.offset_bytes :]
        if new:
            self.data += new
            self.notify()
        return True

    def finish(self, record: FinalRecord) -> None:
        """Takes the end, unless it is of an attempt that another has superseded; a client's has none."""
        if self.end is None and (not record.attempt or record.attempt >= self.attempt):
            self.end = record
            if record.text is not None:
                self.data, self.base_bytes = bytearray(record.text.encode()), 0
            self.notify()


class Cursor:
    """One reader's place in one variable."""

    def __init__(self, feed: SessionFeed, variable_id: str, offset_bytes: int) -> None:
        self._feed = feed
        self._variable_id = variable_id
        self.offset_bytes = offset_bytes

    def close(self) -> None:
        """Reads no more; once."""
        self._feed.close_cursor(self._variable_id)

    async def next(self, timeout_s: float) -> Chunk | End | None:
        """What comes next: text, the end, or None when nothing came within `timeout_s`.

        Raises:
            Fault: `invalid_request`, when the cursor started within a character or beyond the end.
        """
        buffer = self._feed.buffer(self._variable_id)
        if not self._has_news(buffer):
            try:
                # Not `wait_for`: on Python 3.11 that loses a cancellation that comes with the news.
                async with asyncio.timeout(timeout_s):
                    await buffer.changed.wait()
            except TimeoutError:
                return None
        await self._feed.complete(buffer)
        return self._take(buffer)

    def _has_news(self, buffer: Buffer) -> bool:
        more = buffer.size_bytes > self.offset_bytes >= buffer.base_bytes
        return more or buffer.end is not None or buffer.announced is not None

    def _take(self, buffer: Buffer) -> Chunk | End | None:
        size, base = buffer.size_bytes, buffer.base_bytes
        if size > self.offset_bytes >= base:
            if buffer.data[self.offset_bytes - base] & 0xC0 == 0x80:
                raise Fault(
                    errors.INVALID_REQUEST,
                    f"offset {self.offset_bytes} lies within a character; use an id that the stream sent",
                    variable_id=self._variable_id,
                )
            chunk = Chunk(self.offset_bytes, buffer.data[self.offset_bytes - base :].decode())
            self.offset_bytes = size
            return chunk
        if buffer.end is None:
            return None
        # What was streamed before a failure may not be here yet: only a value says how long it is.
        if self.offset_bytes > size and buffer.end.text is not None:
            raise Fault(
                errors.INVALID_REQUEST,
                f"offset {self.offset_bytes} lies beyond the value's {size} bytes; "
                "use an id that the stream sent",
                variable_id=self._variable_id,
            )
        return End(buffer.end)
