"""Follows the log of a session: its step messages and states, in the one order of their stream.

A process subscribes once a session and keeps the newest messages, rendered once for all who read them.
A message's sequence in the stream is its place, the same for every process and after every restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Final

import structlog

from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.bus import TROUBLE, Bus
from parrot_runtime.values.bus_client import end
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.replay import replayed
from parrot_runtime.values.session_entries import Entries, Entry
from parrot_runtime.values.session_fold import Added, Fold, Rest
from parrot_runtime.values.shared import Shared
from parrot_runtime.values.subjects import SessionSubjects

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

KEPT_BYTES: Final = 1 << 20
"""Rendered messages that are kept for the readers of a session; one who falls behind them is told."""
PENDING_MESSAGES: Final = 1 << 20
LOOK_AGAIN_S: Final = 60.0
"""How long a silent log is trusted: what the bus told may have been lost on its way here."""
LOOK_AGAIN_REPLICATED_S: Final = 10.0
"""The same in a cluster: there it is lost also between two servers, of which no client hears."""
TRY_AGAIN_S: Final = 1.0

Told = values_pb2.StateChange | Added
Render = Callable[[int, Sequence[Told]], list[bytes]]
"""From a message's sequence and what is new in it to what its readers get."""
ReadValue = Callable[[SessionSubjects, str], Awaitable[bytes]]
"""The value of a variable that is ready, in UTF-8; raises `Fault`, `unavailable`."""
log = structlog.get_logger()


class SessionLog:
    """One session's log, as far as it is kept, and what all of it amounts to.

    Attributes:
        entries: the newest messages.
        fold: the session after all messages so far.
        last: the sequence of the newest; 0: there is none.
    """

    def __init__(
        self, bus: Bus, names: SessionSubjects, render: Render, read_value: ReadValue, kept_bytes: int
    ) -> None:
        self._bus = bus
        self._names = names
        self._render = render
        self._read_value = read_value
        self.entries = Entries(kept_bytes)
        self.fold = Fold()
        self.last = 0
        self._lasts = {names.delta: 0, names.state: 0}
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = None
        self._heard: list[Msg] = []
        self._filling: asyncio.Task[BaseException | None] | None = None
        self._look_at = 0.0
        self._breaks = 0
        self._missed = False

    async def open(self) -> None:
        """Subscribes, and reads all there is.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """
        try:
            self._subscription = await self._bus.client.subscribe(
                self._names.live_log, cb=self._on_message, pending_msgs_limit=PENDING_MESSAGES
            )
            await self._bus.flush()
            self._bus.breaks.listen(self._on_break)
            trouble = await self._look_again()
            if trouble is not None:
                raise trouble
        except BaseException as error:
            await asyncio.shield(self.close())
            if not isinstance(error, TROUBLE):
                raise
            raise Fault(
                errors.UNAVAILABLE, f"the bus can't be reached ({error!r}); try again", retry_after_ms=1000
            ) from error

    async def close(self) -> None:
        """Unsubscribes."""
        self._bus.breaks.forget(self._on_break)
        if self._filling is not None:
            await end(self._filling)
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except TROUBLE:
                log.debug("unsubscribed without a connection")
            self._subscription = None

    async def parts(self, entry: Entry) -> list[bytes]:
        """What an entry's readers get.

        Raises:
            Fault: `unavailable`, when a value that belongs to it can't be read.
        """
        if entry.parts is None:
            told = [await self._whole(one) if isinstance(one, Rest) else one for one in entry.news]
            # Another reader may have been quicker.
            if entry.parts is None:
                self.entries.render(entry, self._render(entry.sequence, told))
        return entry.parts or []

    async def wait(self, number: int, timeout_s: float) -> None:
        """Returns when there is an entry of that number, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while number >= self.entries.end and (now := time.monotonic()) < deadline:
            if self._bus.breaks.count != self._breaks or now > self._look_at:
                self._look_again()
            try:
                async with asyncio.timeout(min(deadline - now, max(self._look_at - now, TRY_AGAIN_S))):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _look_again(self) -> asyncio.Task[BaseException | None]:
        """Reads what the stream has beyond the newest message known here; what kept it from that."""
        if self._filling is None or self._filling.done():
            self._look_at = time.monotonic() + self._trusted_s
            self._breaks = self._bus.breaks.count
            self._filling = asyncio.create_task(self._fill_or_why(), name="session-log")
        return self._filling

    @property
    def _trusted_s(self) -> float:
        return LOOK_AGAIN_REPLICATED_S if self._bus.is_replicated else LOOK_AGAIN_S

    def _on_break(self) -> None:
        # What is read now may be of before.
        self._missed = True
        self._look_again()

    async def _on_message(self, message: Msg) -> None:
        if self._filling is not None and not self._filling.done():
            self._heard.append(message)
        elif not self._hear(message):
            self._look_again()

    def _hear(self, message: Msg) -> bool:
        """Takes in what the bus tells; False: something before it did not get here."""
        headers = message.headers or {}
        subject, sequence = headers.get("Nats-Subject", ""), int(headers.get("Nats-Sequence", 0))
        if sequence <= self.last or subject not in self._lasts:
            return True
        if self._lasts[subject] != int(headers.get("Nats-Last-Sequence", 0)):
            return False
        self._look_at = time.monotonic() + self._trusted_s
        self._take(subject, sequence, time.time(), message.data)
        return True

    def _take(self, subject: str, sequence: int, at_s: float, data: bytes) -> None:
        if sequence <= self.last or subject not in self._lasts:
            return
        self._lasts[subject] = self.last = sequence
        if subject == self._names.state:
            news = self.fold.add_states(values_pb2.SessionStates.FromString(data))
        else:
            news = self.fold.add_step(values_pb2.StepDeltas.FromString(data), time.time() - at_s)
        self.entries.add(Entry(sequence, at_s, news))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _whole(self, rest: Rest) -> Added:
        value = await self._read_value(self._names, rest.variable_id)
        return Added(rest.variable_id, rest.offset_bytes, value[rest.offset_bytes :].decode(errors="replace"))

    async def _fill_or_why(self) -> BaseException | None:
        while True:
            self._missed = False
            try:
                await self._fill()
            except TROUBLE as error:
                log.warning("session's log not read; tried again", reason=repr(error))
                self._look_at = time.monotonic() + TRY_AGAIN_S
                return error
            if not self._missed:
                return None

    async def _fill(self) -> None:
        """Reads what the stream has, then what was heard meanwhile; again, if something is missing there."""
        whole = False
        while not whole:
            # The stream has what was heard before it is asked for its newest.
            self._heard.clear()
            async with self._bus.fills:
                await self._read(await self._newest())
            heard, self._heard = self._heard, []
            whole = all(map(self._hear, heard))

    async def _newest(self) -> int:
        """The newest sequence of the session in the stream."""
        return max(await asyncio.gather(*map(self._last_of, self._lasts)))

    async def _last_of(self, subject: str) -> int:
        found = await self._bus.last(subjects.DELTA_STREAM, subject)
        return (found.seq or 0) if found is not None else 0

    async def _read(self, until: int) -> None:
        if until <= self.last:
            return
        async with aclosing(replayed(self._bus, self._names.log, until, first=self.last + 1)) as messages:
            async for message in messages:
                metadata = message.metadata
                at_s = metadata.timestamp.timestamp()
                self._take(message.subject, metadata.sequence.stream, at_s, message.data)


class SessionLogs(Shared[SessionLog]):
    """The logs that are followed in one process."""

    def __init__(self, bus: Bus, render: Callable[[str], Render], read_value: ReadValue) -> None:
        """`render`: how the messages of a session, by its id, are rendered.

        `read_value`: asked where the bus does not have a value any more.
        """
        super().__init__()
        self._bus = bus
        self._render = render
        self._read_value = read_value
        self._finals = Finals(bus)

    def session(self, tenant: str, session_id: str) -> AbstractAsyncContextManager[SessionLog]:
        """The log of a session, shared by all who follow it.

        Raises:
            Fault: `unavailable`, when the bus can't be reached.
        """
        return self.use(session_id, lambda: self.alone(tenant, session_id, KEPT_BYTES))

    def alone(self, tenant: str, session_id: str, kept_bytes: int) -> SessionLog:
        """A log of one's own, that begins where the stream does; it is not open yet."""
        names = SessionSubjects(tenant, session_id)
        render = self._render(session_id)
        return SessionLog(self._bus, names, render, self._value, kept_bytes)

    async def _value(self, names: SessionSubjects, variable_id: str) -> bytes:
        final = await self._finals.read(names.final(variable_id))
        if final is not None and final.text is not None:
            return final.text.encode()
        return await self._read_value(names, variable_id)
