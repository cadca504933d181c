"""Reads the variables of a session as they are written.

A process subscribes once a session to what the server republishes, and fans out in memory: a
reader of a variable is a cursor into a shared buffer. Offsets, in bytes of UTF-8, are the truth:
a cursor drops what it has, a gap is filled from the stream, and what the stream lacks the final
value brings. A slow reader holds nothing but its offset.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from nats.js import api
from nats.js.errors import NotFoundError

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import AGED_S, TROUBLE, Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.shared import Shared
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


class _Subscription(Protocol):
    async def unsubscribe(self) -> None: ...


class Feeds(Shared["SessionFeed"]):
    """The session feeds of one process, opened on first use and closed with their last user."""

    def __init__(self, bus: Bus, *, forget_ended: bool = False) -> None:
        """`forget_ended`: see `SessionFeed`."""
        super().__init__()
        self._bus = bus
        self._forget_ended = forget_ended

    def session(self, tenant: str, session_id: str) -> AbstractAsyncContextManager[SessionFeed]:
        """The session's feed: what is published from now on is heard.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """

        def make() -> SessionFeed:
            names = SessionSubjects(tenant, session_id)
            return SessionFeed(self._bus, names, forget_ended=self._forget_ended)

        return self.use(session_id, make)

    def open_feed(self, session_id: str) -> SessionFeed | None:
        """The session's feed, if somebody in this process reads it now."""
        return self.opened(session_id)


class SessionFeed:
    """The variables of one session, as they are heard on the bus."""

    def __init__(self, bus: Bus, names: SessionSubjects, *, forget_ended: bool = False) -> None:
        """`forget_ended`: keeps no variable that has ended and that nobody reads.

        Whoever asks for one later finds its end where finals are kept. A session that lives long
        makes many variables.
        """
        self._bus = bus
        self._names = names
        self._forget_ended = forget_ended
        self._forgotten: set[str] = set()
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
            await self._bus.flush()
        except BaseException as error:
            # A reader that is cancelled here must not leave a subscription that nobody ends.
            await asyncio.shield(self.close())
            if not isinstance(error, TROUBLE):
                raise
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
        self.buffer(variable_id).cursors += 1
        return Cursor(self, variable_id, offset_bytes)

    def close_cursor(self, variable_id: str) -> None:
        """One reader less of the variable."""
        buffer = self.buffer(variable_id)
        buffer.cursors -= 1
        self._forget_if_done(variable_id, buffer)

    def end_of(self, variable_id: str) -> FinalRecord | None:
        """The variable's end, if it is known here."""
        found = self._buffers.get(variable_id)
        return found.end if found is not None else None

    def forgotten(self, variable_id: str) -> bool:
        """The variable has ended, and only the bus has its end."""
        return variable_id in self._forgotten

    def resolve(self, record: FinalRecord) -> None:
        """Tells the feed of an end learnt elsewhere, such as from the manager."""
        if record.variable_id not in self._forgotten or self._reads(record.variable_id):
            self.buffer(record.variable_id).finish(record)

    def offer(self, variable_id: str, attempt: int, offset_bytes: int, text: str) -> None:
        """Tells the feed of text this process writes itself, ahead of the bus.

        Text that does not follow what is here is left to the bus.
        """
        delta = values_pb2.Delta(
            variable_id=variable_id, attempt=attempt, offset_bytes=offset_bytes, text=text
        )
        self._add(delta)

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
        found = self._buffers.get(variable_id)
        if found is None:
            found = self._buffers[variable_id] = _Buffer()
        return found

    async def complete(self, buffer: _Buffer) -> None:
        """Fetches the value whose end was announced; when its parts are gone, waits to be told."""
        if buffer.announced is None or buffer.end is not None:
            return
        message, headers = buffer.announced
        record = await self._finals.complete(self._names.final(message.variable_id), message, headers)
        buffer.announced = None
        if record is not None:
            buffer.finish(record)

    async def reach_bytes(self, variable_id: str, offset_bytes: int) -> int | None:
        """How far a variable's text goes by all that is known, if that is not as far as an offset.

        None: it is, or the bus could not be asked.
        """
        buffer = self.buffer(variable_id)
        if offset_bytes > buffer.reach_bytes and buffer.end is None:
            self.catch_up()
            if self._replay is not None:
                await asyncio.wait([self._replay])
        reach_bytes = buffer.reach_bytes if buffer.end is None else buffer.size_bytes
        return reach_bytes if offset_bytes > reach_bytes and self._caught_up else None

    @property
    def reconnects(self) -> int:
        """How often the bus was lost: what it told meanwhile was not heard."""
        return int(self._bus.client.stats["reconnects"])

    async def _on_delta(self, message: Msg) -> None:
        if not self._take(message.data):
            self.catch_up()

    def _take(self, data: bytes, *, aged: bool = False) -> bool:
        whole = True
        for delta in values_pb2.StepDeltas.FromString(data).deltas:
            whole &= self._add(delta, aged=aged)
        return whole

    def _add(self, delta: values_pb2.Delta, *, aged: bool = False) -> bool:
        """Takes in a delta; False when text before it is missing."""
        return delta.variable_id in self._forgotten or self.buffer(delta.variable_id).add(delta, aged=aged)

    def _reads(self, variable_id: str) -> bool:
        found = self._buffers.get(variable_id)
        return found is not None and found.cursors > 0

    def _forget_if_done(self, variable_id: str, buffer: _Buffer) -> None:
        on_bus = buffer.on_bus or variable_id in self._forgotten
        if self._forget_ended and on_bus and not buffer.cursors:
            self._buffers.pop(variable_id, None)
            self._forgotten.add(variable_id)

    async def _on_final(self, message: Msg) -> None:
        final = values_pb2.Final.FromString(message.data)
        if final.variable_id in self._forgotten:
            return
        buffer = self.buffer(final.variable_id)
        if final.attempt >= buffer.attempt:
            buffer.on_bus = True
            if buffer.end is None:
                buffer.announced = (final, dict(message.headers or {}))
                buffer.notify()
            self._forget_if_done(final.variable_id, buffer)

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
                        age_s = time.time() - message.metadata.timestamp.timestamp()
                        self._take(message.data, aged=age_s > AGED_S)
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

    def _has_news(self, buffer: _Buffer) -> bool:
        more = buffer.size_bytes > self.offset_bytes >= buffer.base_bytes
        return more or buffer.end is not None or buffer.announced is not None

    def _take(self, buffer: _Buffer) -> Chunk | End | None:
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
