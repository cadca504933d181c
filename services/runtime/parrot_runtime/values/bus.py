"""The connection to NATS, and the two streams values live in."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import nats
import nats.errors
import structlog
from nats.js import JetStreamContext, api
from nats.js.errors import BadRequestError, NotFoundError

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client

OLDEST_SERVER: Final = (2, 12)
DELTA_AGE_S: Final = 600
STATE_AGE_S: Final = 90_000
"""Longer than a session lives: what is told of it stays until it is purged."""
AGED_S: Final = DELTA_AGE_S - 90
"""Text that is older, and before which text is missing, followed what went with its age."""
FINAL_AGE_S: Final = 3600
"""How old a message gets; each says so itself. With an age of the whole stream, a server that starts
drops the epochs that are older, though they are to last."""
DEDUPE_S: Final = 120
PENDING_BYTES: Final = 64 << 20
RECONNECT_S: Final = 0.2
FLUSH_S: Final = 5
TROUBLE: Final = (nats.errors.Error, OSError, RuntimeError)
"""What a server that refuses, is silent or is lost makes the client raise. The RuntimeError is uvloop's,
for a write to a connection that was lost a moment ago; asyncio's own loop raises an OSError, or nothing."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Bus:
    """A connection and its JetStream context."""

    client: Client
    js: JetStreamContext

    async def flush(self) -> None:
        """Returns once the server has all that was written.

        Whoever waits may be cancelled, but the library's flush is not: its late answer would find nobody,
        and end the connection for everyone.

        Raises:
            one of TROUBLE: the server does not answer within `FLUSH_S`, or can't be reached.
        """
        flushing = asyncio.create_task(self.client.flush(timeout=FLUSH_S), name="bus-flush")
        _FLUSHING.add(flushing)
        flushing.add_done_callback(_flushed)
        await asyncio.shield(flushing)


_FLUSHING: Final[set[asyncio.Task[None]]] = set()


def _flushed(flushing: asyncio.Task[None]) -> None:
    _FLUSHING.discard(flushing)
    if not flushing.cancelled():
        # Whoever waited was told of it, or waits no more.
        flushing.exception()


@asynccontextmanager
async def connected(url: str, name: str, timeout_s: float) -> AsyncIterator[Bus]:
    """A bus whose streams exist. Reconnects by itself for as long as it is open.

    Raises:
        Fault: `unavailable`, when no suitable server answers within `timeout_s`: none there, too
            old (before 2.12 NATS silently ignores what we rely on), or without JetStream.
    """
    client = await _connect(url, name, timeout_s)
    try:
        found = client.connected_server_version
        check_version(f"{found.major}.{found.minor}.{found.patch}", url)
        bus = Bus(client, client.jetstream(timeout=5))
        await _ensure_streams(bus, url)
        yield bus
    finally:
        await _close(client)


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


async def _connect(url: str, name: str, timeout_s: float) -> Client:
    async def on_error(error: Exception) -> None:
        # While the server is away this comes with every try; the loss itself is logged once below.
        log.debug("nats", error=repr(error))

    async def on_disconnect() -> None:
        log.warning("nats disconnected", url=url)

    async def on_reconnect() -> None:
        log.info("nats reconnected", url=url)

    try:
        async with asyncio.timeout(timeout_s):
            return await nats.connect(
                url,
                name=name,
                connect_timeout=2,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_S,
                pending_size=PENDING_BYTES,
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
            )
    except TimeoutError:
        reason = f"waited {timeout_s:g} s"
    except (OSError, nats.errors.Error) as error:
        reason = str(error)
    raise Fault(errors.UNAVAILABLE, f"no NATS server answers at {url} ({reason}); is it running?")


async def _close(client: Client) -> None:
    if client.is_connected:
        try:
            await asyncio.wait_for(client.drain(), 2)
        except TROUBLE as error:
            log.warning("nats not drained", error=repr(error))
    if not client.is_closed:
        try:
            await client.close()
        except TROUBLE as error:
            # It tries to write what is left, also to a server that is away.
            log.warning("nats closed with messages unsent", error=repr(error))


async def _ensure_streams(bus: Bus, url: str) -> None:
    for config in _configs():
        try:
            await _ensure_stream(bus.js, config)
        except TROUBLE as error:
            raise Fault(
                errors.UNAVAILABLE,
                f"the NATS server at {url} can't keep the stream {config.name} ({error}); "
                "is JetStream turned on (nats-server -js)?",
            ) from None


async def _ensure_stream(js: JetStreamContext, config: api.StreamConfig) -> None:
    try:
        await js.add_stream(config)
    except BadRequestError:
        kept = (await js.stream_info(config.name or "")).config
        # One with more subjects is a later version's, whose processes would lose them.
        if not set(kept.subjects or ()) > set(config.subjects or ()):
            await js.update_stream(config)
    except NotFoundError as error:
        raise nats.errors.Error(f"JetStream is off: {error}") from None


def _configs() -> list[api.StreamConfig]:
    def republish(root: str) -> api.RePublish:
        return api.RePublish(src=f"{root}.>", dest=f"{subjects.LIVE_ROOT}.{root}.>")

    # Of two roots, in the one order they have: the epochs' few messages come along.
    everything = api.RePublish(src=">", dest=f"{subjects.LIVE_ROOT}.>")

    deltas = api.StreamConfig(
        name=subjects.DELTA_STREAM,
        subjects=[
            f"{root}.>" for root in (subjects.DELTA_ROOT, subjects.STATE_ROOT, subjects.DELTA_EPOCH_ROOT)
        ],
        storage=api.StorageType.FILE,
        duplicate_window=1,
        allow_direct=True,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        republish=everything,
    )
    finals = api.StreamConfig(
        name=subjects.FINAL_STREAM,
        subjects=[f"{subjects.FINAL_ROOT}.>", f"{subjects.FINAL_EPOCH_ROOT}.>"],
        storage=api.StorageType.FILE,
        max_msgs_per_subject=1,
        duplicate_window=DEDUPE_S,
        allow_direct=True,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        republish=republish(subjects.FINAL_ROOT),
    )
    return [deltas, finals]
