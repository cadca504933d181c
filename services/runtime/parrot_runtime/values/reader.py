"""Reads the variables of a session as they are written.

A process subscribes once a session to what the server republishes, and fans out in memory: a
reader of a variable is a cursor into a shared buffer. Offsets, in bytes of UTF-8, are the truth:
a cursor drops what it has, a gap is filled from the stream, and what the stream lacks the final
value brings. A slow reader holds nothing but its offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from nats.js import api
from nats.js.errors import NotFoundError

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import TROUBLE, Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects

if TYPE_CHECKING:
    from nats.aio.msg import Msg

REPLAY_TIMEOUT_S: Final = 5.0
PENDING_MESSAGES: Final = 1 << 20

log = structlog.get_logger()


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
class _Buffer:
    """What is known of one variable: its text so far, and its end."""

    data: bytearray = field(default_factory=bytearray)
    attempt: int = 0
    announced: tuple[values_pb2.Final, dict[str, str]] | None = None
    end: FinalRecord | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def add(self, delta: values_pb2.Delta) -> bool:
        """Takes in a delta; False when text before it is missing."""
        if delta.attempt < self.attempt or self.end is not None:
            return True
        have = len(self.data)
        if delta.offset_bytes > have:
            return False
        self.attempt = delta.attempt
        new = delta.text.encode()[have - delta.offset_bytes :]
        if new:
            self.data += new
            self.notify()
        return True

    def finish(self, record: FinalRecord) -> None:
        if self.end is None:
            self.end = record
            if record.text is not None:
                self.data = bytearray(record.text.encode())
            self.notify()


class _Subscription(Protocol):
    async def unsubscribe(self) -> None: ...


class Feeds:
    """The session feeds of one process, opened on first use and closed with their last user."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[str, tuple[SessionFeed, int]] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def session(self, tenant: str, session_id: str) -> AsyncIterator[SessionFeed]:
        """The session's feed: what is published from now on is heard.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """
        feed = await self._acquire(tenant, session_id)
        try:
            yield feed
        finally:
            await asyncio.shield(self._release(session_id))

    def open_feed(self, session_id: str) -> SessionFeed | None:
        """The session's feed, if somebody in this process reads it now."""
        feed, _ = self._open.get(session_id, (None, 0))
        return feed

    async def _acquire(self, tenant: str, session_id: str) -> SessionFeed:
        async with self._lock:
            feed, users = self._open.get(session_id, (None, 0))
            if feed is None:
                feed = SessionFeed(self._bus, SessionSubjects(tenant, session_id))
                await feed.open()
            self._open[session_id] = (feed, users + 1)
            return feed

    async def _release(self, session_id: str) -> None:
        async with self._lock:
            feed, users = self._open[session_id]
            if users > 1:
                self._open[session_id] = (feed, users - 1)
                return
            del self._open[session_id]
            await feed.close()


class SessionFeed:
    """The variables of one session, as they are heard on the bus."""

    def __init__(self, bus: Bus, names: SessionSubjects) -> None:
        self._bus = bus
        self._names = names
        self._finals = Finals(bus)
        self._buffers: dict[str, _Buffer] = {}
        self._subscriptions: list[_Subscription] = []
        self._replay: asyncio.Task[None] | None = None
        self._caught_up = False

    async def open(self) -> None:
        """Subscribes, and returns once the server knows of it.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """
        client = self._bus.client
        try:
            for subject, handler in (
                (self._names.live_delta, self._on_delta),
                (self._names.live_finals, self._on_final),
            ):
                self._subscriptions.append(
                    await client.subscribe(subject, cb=handler, pending_msgs_limit=PENDING_MESSAGES)
                )
            await client.flush(timeout=5)
        except TROUBLE as error:
            await self.close()
            raise Fault(
                errors.UNAVAILABLE, f"the bus can't be reached ({error!r}); try again", retry_after_ms=1000
            ) from error

    async def close(self) -> None:
        """Unsubscribes."""
        if self._replay is not None:
            self._replay.cancel()
            await asyncio.gather(self._replay, return_exceptions=True)
        for subscription in self._subscriptions:
            try:
                await subscription.unsubscribe()
            except TROUBLE:
                log.debug("unsubscribed without a connection")
        self._subscriptions.clear()

    def cursor(self, variable_id: str, offset_bytes: int = 0) -> Cursor:
        """A reader of the variable that has everything before `offset_bytes`."""
        return Cursor(self, variable_id, offset_bytes)

    def resolve(self, record: FinalRecord) -> None:
        """Tells the feed of an end learnt elsewhere, such as from the manager."""
        self.buffer(record.variable_id).finish(record)

    def offer(self, variable_id: str, attempt: int, offset_bytes: int, text: str) -> None:
        """Tells the feed of text this process writes itself, ahead of the bus.

        Text that does not follow what is here is left to the bus.
        """
        delta = values_pb2.Delta(
            variable_id=variable_id, attempt=attempt, offset_bytes=offset_bytes, text=text
        )
        self.buffer(variable_id).add(delta)

    def catch_up(self) -> None:
        """Starts filling in what was published before the feed opened, or was missed since."""
        if self._replay is None or self._replay.done():
            self._replay = asyncio.create_task(self._fill(), name="value-replay")

    def catch_up_once(self) -> None:
        """As `catch_up`, unless that was done: from then on the feed hears everything by itself."""
        if not self._caught_up:
            self.catch_up()

    def buffer(self, variable_id: str) -> _Buffer:
        """The shared buffer of a variable."""
        return self._buffers.setdefault(variable_id, _Buffer())

    async def complete(self, buffer: _Buffer) -> None:
        """Fetches the value whose end was announced; when its parts are gone, waits to be told."""
        if buffer.announced is None or buffer.end is not None:
            return
        message, headers = buffer.announced
        record = await self._finals.complete(self._names.final(message.variable_id), message, headers)
        buffer.announced = None
        if record is not None:
            buffer.finish(record)

    async def _on_delta(self, message: Msg) -> None:
        if not self._take(message.data):
            self.catch_up()

    def _take(self, data: bytes) -> bool:
        whole = True
        for delta in values_pb2.StepDeltas.FromString(data).deltas:
            whole &= self.buffer(delta.variable_id).add(delta)
        return whole

    async def _on_final(self, message: Msg) -> None:
        final = values_pb2.Final.FromString(message.data)
        buffer = self.buffer(final.variable_id)
        if final.attempt >= buffer.attempt and buffer.end is None:
            buffer.announced = (final, dict(message.headers or {}))
            buffer.notify()

    async def _fill(self) -> None:
        js = self._bus.js
        try:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                last = await js.get_last_msg(subjects.DELTA_STREAM, self._names.delta, direct=True)
                subscription = await js.subscribe(
                    self._names.delta,
                    stream=subjects.DELTA_STREAM,
                    ordered_consumer=True,
                    config=api.ConsumerConfig(deliver_policy=api.DeliverPolicy.ALL),
                )
                try:
                    while True:
                        message = await subscription.next_msg(timeout=REPLAY_TIMEOUT_S)
                        self._take(message.data)
                        if message.metadata.sequence.stream >= (last.seq or 0):
                            self._caught_up = True
                            return
                finally:
                    await subscription.unsubscribe()
        except NotFoundError:
            self._caught_up = True
        except TROUBLE as error:
            log.warning("replay failed; the final value will heal it", error=repr(error))


class Cursor:
    """One reader's place in one variable."""

    def __init__(self, feed: SessionFeed, variable_id: str, offset_bytes: int) -> None:
        self._feed = feed
        self._variable_id = variable_id
        self.offset_bytes = offset_bytes

    async def next(self, timeout_s: float) -> Chunk | End | None:
        """What comes next: text, the end, or None when nothing came within `timeout_s`.

        Raises:
            Fault: `invalid_request`, when the cursor started within a character or beyond the end.
        """
        buffer = self._feed.buffer(self._variable_id)
        if not self._has_news(buffer):
            try:
                await asyncio.wait_for(buffer.changed.wait(), timeout_s)
            except TimeoutError:
                return None
        await self._feed.complete(buffer)
        return self._take(buffer)

    def _has_news(self, buffer: _Buffer) -> bool:
        return buffer.end is not None or buffer.announced is not None or len(buffer.data) > self.offset_bytes

    def _take(self, buffer: _Buffer) -> Chunk | End | None:
        size = len(buffer.data)
        if size > self.offset_bytes:
            if buffer.data[self.offset_bytes] & 0xC0 == 0x80:
                raise Fault(
                    errors.INVALID_REQUEST,
                    f"offset {self.offset_bytes} lies within a character; use an id that the stream sent",
                    variable_id=self._variable_id,
                )
            chunk = Chunk(self.offset_bytes, buffer.data[self.offset_bytes :].decode())
            self.offset_bytes = size
            return chunk
        if buffer.end is None:
            return None
        if self.offset_bytes > size:
            raise Fault(
                errors.INVALID_REQUEST,
                f"offset {self.offset_bytes} lies beyond the value's {size} bytes; "
                "use an id that the stream sent",
                variable_id=self._variable_id,
            )
        return End(buffer.end)
