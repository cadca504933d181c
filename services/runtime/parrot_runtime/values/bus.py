"""The connection to NATS: one server, or a cluster that keeps several replicas of what it takes."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import nats.errors
import structlog
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import connection, streams, subjects
from parrot_runtime.values.breaks import Breaks
from parrot_runtime.values.bus_client import BusClient, end, hide_passwords
from parrot_runtime.values.connection import TROUBLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import api
    from nats.js.api import RawStreamMsg

    from parrot_runtime.tls import Tls

OLDEST_SERVER: Final = (2, 12)
DELTA_AGE_S: Final = 600
STATE_AGE_S: Final = 90_000
"""Longer than a session lives: what is told of it stays until it is purged."""
AGED_S: Final = DELTA_AGE_S - 90
"""Text that is older, and before which text is missing, followed what went with its age."""
FINAL_AGE_S: Final = 3600
"""How old a message gets; each says so itself. With an age of the whole stream, a server that starts
drops the epochs that are older, though they are to last."""
FLUSH_S: Final = 5
READ_S: Final = 10.0
"""How long a leader is waited for that is to answer: longer than most elections take."""
ATTEMPT_S: Final = 1.0
AGAIN_S: Final = 0.2
WATCH_S: Final = 5.0
UNANSWERED: Final = 3
"""Questions in a row, each waited for as long as `ASKED_S`."""
ASKED_S: Final = 5
FILLS: Final = 64
"""What is read from the streams at once: each takes a consumer of the server's."""
MANAGER: Final = "manager"
ELECTED: Final = "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED"
__all__ = ["TROUBLE", "Bus", "connected"]

log = structlog.get_logger()


@dataclass(slots=True, weakref_slot=True)
class Bus:
    """A connection and its JetStream context.

    Attributes:
        replicas: how many servers keep what is written; with several, a server answers at once only what
            its leader knows, and takes one write under a mark at a time.
        breaks: when something may not have been heard.
        fills: places for those who read from the streams.
    """

    client: Client
    js: JetStreamContext
    replicas: int = 1
    breaks: Breaks = field(default_factory=Breaks)
    fills: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FILLS))
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def is_replicated(self) -> bool:
        """Whether what is written is kept by several servers."""
        return self.replicas > 1

    async def last(self, stream: str, subject: str) -> RawStreamMsg | None:
        """The last message of a subject, as of a moment after the call; None: there is none.

        Of replicas it is the leader that is asked, and a new one is waited for: a follower may not have
        what was acknowledged long ago.

        Raises:
            one of TROUBLE: the bus does not answer.
        """
        if not self.is_replicated:
            return await _or_none(self.js.get_last_msg(stream, subject, direct=True))
        quick = self.client.jetstream(timeout=ATTEMPT_S)
        deadline = time.monotonic() + READ_S
        while True:
            try:
                return await _or_none(quick.get_last_msg(stream, subject))
            except TROUBLE:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str], timeout_s: float
    ) -> api.PubAck:
        """Returns once a stream has a message, acknowledged.

        Of replicas, who waits is told at once when the connection was lost or there is another leader: the
        answer may have gone with the one before.

        Raises:
            one of TROUBLE: it is refused, or nothing was heard of it; it may be there all the same.
        """
        publishing = self.js.publish(subject, payload, timeout=timeout_s, headers=headers)
        if not self.is_replicated:
            return await publishing
        task = asyncio.create_task(publishing, name="bus-publish")
        broken = asyncio.get_running_loop().create_future()
        on_break = partial(_settle, broken)
        self.breaks.listen(on_break)
        try:
            await asyncio.wait((task, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.breaks.forget(on_break)
            # Cancelled, the library would take a late answer for somebody else's; so it is left to end.
            task.add_done_callback(_noted)
        if not task.done():
            raise nats.errors.TimeoutError
        return task.result()

    def turn(self, epoch_subject: str) -> asyncio.Lock:
        """Whoever writes under a mark does it in its turn: replicas refuse a second one meanwhile."""
        return self._turns.setdefault(epoch_subject, asyncio.Lock())

    async def flush(self) -> None:
        """Returns once the server has all that was written; without a connection, at once.

        Subscriptions are told to the next server before anything else, and `breaks` tells of it. A
        question that went with a connection is never answered, so another is asked after a break.

        Raises:
            one of TROUBLE: no server answers within `FLUSH_S`.
        """
        broken = asyncio.Event()
        self.breaks.listen(broken.set)
        try:
            async with asyncio.timeout(FLUSH_S):
                while not await self._answered(broken):
                    broken.clear()
        except TimeoutError:
            raise nats.errors.FlushTimeoutError from None
        finally:
            self.breaks.forget(broken.set)

    async def _answered(self, broken: asyncio.Event) -> bool:
        """Whether the server answered before a break.

        Whoever waits may be cancelled, but the library's flush is not: its late answer would find nobody,
        and end the connection for everyone.
        """
        flushing = asyncio.create_task(self.client.flush(timeout=FLUSH_S), name="bus-flush")
        _FLUSHING.add(flushing)
        flushing.add_done_callback(_flushed)
        breaking = asyncio.create_task(broken.wait(), name="bus-break")
        try:
            await asyncio.wait({flushing, breaking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            breaking.cancel()
        if not flushing.done():
            return False
        flushing.result()
        return True


_FLUSHING: Final[set[asyncio.Task[None]]] = set()


def _flushed(flushing: asyncio.Task[None]) -> None:
    _FLUSHING.discard(flushing)
    _noted(flushing)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _noted(task: asyncio.Task[Any]) -> None:
    """Whoever waited for it was told what became of it, or waits no more."""
    if not task.cancelled():
        task.exception()


async def _or_none(asked: Any) -> RawStreamMsg | None:
    try:
        found: RawStreamMsg = await asked
    except NotFoundError:
        return None
    return found


@asynccontextmanager
async def connected(
    urls: str,
    name: str,
    timeout_s: float,
    *,
    replicas: int = 1,
    tls: Tls | None = None,
    role: str = "",
) -> AsyncIterator[Bus]:
    """A bus whose streams exist. Reconnects by itself for as long as it is open.

    Args:
        urls: of the server, or of those of a cluster, with commas.
        name: by which the server knows the connection.
        timeout_s: how long the servers, and then the streams, are waited for.
        replicas: how many there are to be of the streams, at least.
        tls: what is shown to the server, and by what it is believed.
        role: of the service: but for a manager (and tools, which have none) it waits for the streams.

    Raises:
        Fault: `unavailable`, when no suitable server answers within `timeout_s`: none there, too
            old (before 2.12 NATS silently ignores what we rely on), or without JetStream.
    """
    shown = hide_passwords(urls)
    breaks = Breaks()
    client = BusClient(tls)
    await connection.connect(client, urls, name, timeout_s, role, breaks)
    try:
        found = client.connected_server_version
        check_version(f"{found.major}.{found.minor}.{found.patch}", shown)
        bus = Bus(client, client.jetstream(timeout=ASKED_S), breaks=breaks)
        await _hear_elections(bus)
        if role in ("", MANAGER):
            bus.replicas = await streams.ensure(bus.js, shown, replicas, timeout_s)
        else:
            bus.replicas = await streams.await_made(bus.js, shown, timeout_s)
        watching = asyncio.create_task(_watch(bus), name="bus-watch")
        try:
            yield bus
        finally:
            await end(watching)
    finally:
        await connection.close(client)


def check_version(version: str, url: str) -> None:
    """Refuses a server that is too old.

    Raises:
        Fault: `unavailable`, naming the version and what is needed.
    """
    match = re.match(r"(\d+)\.(\d+)\.", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if found < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        raise Fault(
            errors.UNAVAILABLE,
            f"the NATS server at {url} is version {version or 'unknown'}; Parrot needs {oldest} or newer, "
            "because older ones silently ignore the features it relies on",
        )


async def _hear_elections(bus: Bus) -> None:
    """Takes another leader of a stream for a break; a stream without replicas never has one."""

    async def on_elected(message: Msg) -> None:
        log.info("a stream has another leader", stream=message.subject.rpartition(".")[2])
        bus.breaks.happened()

    for stream in subjects.STREAMS:
        await bus.client.subscribe(f"{ELECTED}.{stream}", cb=on_elected)


async def _watch(bus: Bus) -> None:
    """Knows how many replicas there are, and leaves a server that sees no leader for longer than an election.

    Of a server that others of its cluster can't reach the library takes no notice: it answers.
    """
    changed = asyncio.Event()
    bus.breaks.listen(changed.set)
    unanswered = 0
    while True:
        try:
            async with asyncio.timeout(WATCH_S):
                await changed.wait()
        except TimeoutError:
            pass
        changed.clear()
        try:
            bus.replicas = await streams.replicas(bus.js)
        except TROUBLE as error:
            log.debug("replicas not known now", error=repr(error))
            unanswered += 1
        else:
            unanswered = 0
        if unanswered >= UNANSWERED and bus.is_replicated and bus.client.is_connected:
            log.warning("the server sees no leader of the streams; another one is tried", times=unanswered)
            unanswered = 0
            await bus.client.force_reconnect()
