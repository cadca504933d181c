"""A real gateway in the test's process, on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from parrot_gateway.main import serve
from parrot_gateway.settings import GatewaySettings
from parrot_runtime.lifecycle import Stop


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that answers at `url`."""

    url: str
    stop: Stop
    task: asyncio.Task[None]


@asynccontextmanager
async def running_gateway(manager: str, nats_url: str, *flags: str) -> AsyncIterator[RunningGateway]:
    """A gateway for the length of the `async with`; it is stopped in order."""
    settings = GatewaySettings.load(
        ["--port", "0", "--manager-address", manager, "--nats-url", nats_url, *flags]
    )
    stop = Stop()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings, stop, ready.set_result))
    task.add_done_callback(lambda done: ready.done() or ready.cancel())
    try:
        url = await ready
    except asyncio.CancelledError:
        await task  # It says why it did not get ready.
        raise
    try:
        yield RunningGateway(url, stop, task)
    finally:
        stop.set()
        await task
