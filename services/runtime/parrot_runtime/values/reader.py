"""Reads the variables of a session as they are written.

A process subscribes once a session to what the server republishes, and fans out in memory: a
reader of a variable is a cursor into a shared buffer. A gap is filled from the stream, and what the
stream lacks the final value brings.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.buffer import Buffer, Chunk, Cursor, End
from parrot_runtime.values.bus import AGED_S, READ_S, TROUBLE, Bus
from parrot_runtime.values.bus_client import end
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.replay import replayed
from parrot_runtime.values.shared import Shared
from parrot_runtime.values.subjects import SessionSubjects

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["Chunk", "Cursor", "End", "Feeds", "SessionFeed"]

REPLAY_TIMEOUT_S: Final = 5.0
PENDING_MESSAGES: Final = 1 << 20
HEAL_AGAIN_S: Final = 1.0

log = structlog.get_logger()


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
        self._buffers: dict[str, Buffer] = {}
        self._subscriptions: list[_Subscription] = []
        self._replay: asyncio.Task[bool] | None = None
        self._healing: asyncio.Task[None] | None = None
        self._missed = False
        self._caught_up = False
        self._whole_until = -1

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
            self._bus.breaks.listen(self._on_break)
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
        self._bus.breaks.forget(self._on_break)
        tasks = [task for task in (self._healing, self._replay) if task is not None]
        await asyncio.gather(*map(end, tasks))
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

    def has_ended(self, variable_id: str) -> bool:
        """Whether the variable is known to have ended, with its end here or not yet."""
        found = self._buffers.get(variable_id)
        heard = found is not None and (found.end is not None or found.announced is not None)
        return heard or variable_id in self._forgotten

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

    def buffer(self, variable_id: str) -> Buffer:
        """The shared buffer of a variable."""
        found = self._buffers.get(variable_id)
        if found is None:
            found = self._buffers[variable_id] = Buffer()
        return found

    async def complete(self, buffer: Buffer) -> None:
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
    def breaks(self) -> int:
        """How often something that the bus told may not have been heard."""
        return self._bus.breaks.count

    def _on_break(self) -> None:
        # What is read now may be of before.
        self._missed = True
        if self._healing is None or self._healing.done():
            self._healing = asyncio.create_task(self._heal(), name="value-heal")

    async def _heal(self) -> None:
        """Reads what was not heard: text, and the ends of what is read here."""
        while self._missed:
            self._missed = False
            read = {key: one for key, one in self._buffers.items() if one.cursors and one.end is None}
            if self._replay is not None:
                await asyncio.wait([self._replay])
            try:
                if read:
                    self.catch_up()
                    # Not in one statement with what it is put into: a break may come meanwhile.
                    whole = self._replay is not None and await asyncio.shield(self._replay)
                    self._missed = self._missed or not whole
                await asyncio.gather(*(self._look_for_end(key, one) for key, one in read.items()))
            except Fault as fault:
                log.warning("ends not read after a break; tried again", reason=fault.message)
                self._missed = True
            if self._missed:
                await asyncio.sleep(HEAL_AGAIN_S)

    async def _look_for_end(self, variable_id: str, buffer: Buffer) -> None:
        async with self._bus.fills:
            record = await self._finals.read(self._names.final(variable_id))
        if record is not None:
            buffer.on_bus = True
            buffer.finish(record)

    async def _on_delta(self, message: Msg) -> None:
        headers = message.headers or {}
        if int(headers.get("Nats-Last-Sequence", -2)) == self._whole_until:
            self._whole_until = int(headers["Nats-Sequence"])
        if not self._take(message.data):
            self.catch_up()

    def _take(self, data: bytes, *, aged: bool = False) -> bool:
        deltas = values_pb2.StepDeltas.FromString(data).deltas
        return not [delta for delta in deltas if not self._add(delta, aged=aged)]

    def _add(self, delta: values_pb2.Delta, *, aged: bool = False) -> bool:
        """Takes in a delta; False when text before it is missing."""
        return delta.variable_id in self._forgotten or self.buffer(delta.variable_id).add(delta, aged=aged)

    def _reads(self, variable_id: str) -> bool:
        found = self._buffers.get(variable_id)
        return found is not None and found.cursors > 0

    def _forget_if_done(self, variable_id: str, buffer: Buffer) -> None:
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

    async def _fill(self) -> bool:
        """Reads what the stream has; whether that was possible."""
        try:
            async with self._bus.fills, asyncio.timeout(REPLAY_TIMEOUT_S + READ_S):
                last = await self._bus.last(subjects.DELTA_STREAM, self._names.delta)
                # All that the stream has was heard, each message behind the one before.
                if last is not None and last.seq != self._whole_until:
                    await self._read_until(last.seq or 0)
        except TROUBLE as error:
            log.warning("replay failed; the final value will heal it", error=repr(error))
            return False
        self._caught_up = True
        return True

    async def _read_until(self, sequence: int) -> None:
        async with aclosing(replayed(self._bus, self._names.delta, sequence)) as messages:
            async for message in messages:
                age_s = time.time() - message.metadata.timestamp.timestamp()
                self._take(message.data, aged=age_s > AGED_S)
                self._whole_until = max(self._whole_until, message.metadata.sequence.stream)
