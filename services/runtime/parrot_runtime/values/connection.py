"""Opens and closes the client of NATS: it comes back by itself, to whichever server of a cluster lives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import nats.errors
import structlog

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.breaks import Breaks
from parrot_runtime.values.bus_client import (
    BusClient,
    credentials_of,
    end,
    hide_passwords,
    is_forbidden,
    refuses,
    tells,
    why,
)

if TYPE_CHECKING:
    from nats.aio.client import Client

DRAIN_S: Final = 2.0
PENDING_BYTES: Final = 64 << 20
RECONNECT_S: Final = 0.2
PING_S: Final = 2
"""How often the server is asked whether it lives. It is given up after three that it did not answer: a
cluster has elected others by then."""
TROUBLE: Final = (nats.errors.Error, OSError, RuntimeError)
"""What a server that refuses, is silent or is lost makes the client raise. The RuntimeError is uvloop's,
for a write to a connection that was lost a moment ago; asyncio's own loop raises an OSError, or nothing."""

log = structlog.get_logger()


async def connect(  # noqa: PLR0917 - only a bus is made of it
    client: BusClient, urls: str, name: str, timeout_s: float, role: str, breaks: Breaks
) -> None:
    """Returns once a server has let it in; see `bus.connected`.

    Raises:
        Fault: `unavailable`, when none does within `timeout_s`.
    """
    shown = hide_passwords(urls)
    last: BaseException | None = None
    told = ""

    async def on_error(error: Exception) -> None:
        nonlocal last, told
        if last is None or tells(error) >= tells(last):
            last = error
        if is_forbidden(error):
            # Nobody else hears of it: what is published there is not answered.
            log.error("nats does not let this service do that", error=str(error))
            return
        if refuses(error) and why(error) != told:
            told = why(error)
            log.warning("nats does not let this service in", url=shown, reason=told)
        # While the server is away this comes with every try; the loss itself is logged once below.
        log.debug("nats", error=repr(error))

    async def on_disconnect() -> None:
        log.warning("nats disconnected", url=shown)

    async def on_reconnect() -> None:
        nonlocal told
        told = ""
        log.info("nats reconnected", url=shown)
        breaks.happened()

    servers = [url.strip() for url in urls.split(",")]
    try:
        await client.connect_within(
            timeout_s,
            servers=servers,
            name=name,
            connect_timeout=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_S,
            ping_interval=PING_S,
            pending_size=PENDING_BYTES,
            # A user of the bus is let hear answers to its own role alone.
            inbox_prefix=f"_INBOX_{role}" if role else "_INBOX",
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
            **credentials_of(servers[0]),
        )
        return
    except TimeoutError:
        reason = f"waited {timeout_s:g} s" + (f"; {why(last)}" if last is not None else "")
    except (OSError, nats.errors.Error) as error:
        reason = str(error)
    raise Fault(errors.UNAVAILABLE, f"no NATS server answers at {shown} ({reason}); is it running?")


async def close(client: Client) -> None:
    """Has the server take what was written, for a moment, and ends the connection."""
    if client.is_connected:
        draining = asyncio.create_task(client.drain(), name="bus-drain")
        await asyncio.wait({draining}, timeout=DRAIN_S)
        if not draining.done():
            log.warning("nats not drained", waited_s=DRAIN_S)
        await end(draining)
        if not draining.cancelled() and (error := draining.exception()) is not None:
            if not isinstance(error, TROUBLE):
                raise error
            log.warning("nats not drained", error=repr(error))
    if not client.is_closed:
        try:
            await client.close()
        except TROUBLE as error:
            # It tries to write what is left, also to a server that is away.
            log.warning("nats closed with messages unsent", error=repr(error))
