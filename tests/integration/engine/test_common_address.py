"""An engine that was given an address which leads to any of its managers, as a Kubernetes Service does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.integration.engine.conftest import SIM
from tests.integration.engine.harness import WAIT_S
from tests.integration.engine.manager import Attachment, Manager
from tests.support.nats import free_port

from parrot_engine.backends.sim import SimBackend
from parrot_engine.main import serve
from parrot_engine.settings import EngineSettings
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import rpc
from parrot_runtime.lifecycle import Stop
from parrot_runtime.values.bus import connected

pytestmark = pytest.mark.anyio
BEATS = 25
"""Of 20 ms each: longer than a link waits before it attaches again."""


class Superseding(Manager):
    """Ends the older stream of an engine that attaches again, as managers do."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.streams: list[Attachment] = []
        self.registered = engine_pb2.Registered(
            heartbeat_interval_ms=20, manager_addresses=[f"127.0.0.1:{port}"]
        )

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[engine_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[engine_pb2.AttachResponse]:
        async for response in super().Attach(request_iterator, context):
            if response.WhichOneof("command") == "registered":
                for older in self.streams:
                    older.end()
                self.streams.append(await self.next())
            yield response


@asynccontextmanager
async def superseding_at(port: int) -> AsyncIterator[Superseding]:
    server, manager = rpc.server(), Superseding(port)
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(manager, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield manager
    finally:
        await server.stop(0)


@asynccontextmanager
async def engine_of(address: str, nats_url: str) -> AsyncIterator[None]:
    # As a manager does, it makes the streams.
    async with connected(nats_url, "test", WAIT_S):
        pass
    settings = EngineSettings.load(
        [f"--manager-address={address}", f"--nats-url={nats_url}", "--engine-id=e-1", "--backend=sim"]
    )
    engine = asyncio.create_task(serve(settings, SimBackend(SIM), Stop()))
    yield
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


async def beats(manager: Superseding) -> None:
    """Returns once a stream has stood for a while."""
    async with asyncio.timeout(WAIT_S):
        while not any(_heartbeats(one) > BEATS for one in manager.streams):  # noqa: ASYNC110 - they come and go
            await asyncio.sleep(0.02)


def _heartbeats(attachment: Attachment) -> int:
    return sum(event.WhichOneof("event") == "heartbeat" for event in attachment.reports.events)


async def test_a_manager_that_is_found_by_two_addresses_has_one_stream(nats_url: str) -> None:
    """Its own address and the common one both lead to it, once it was away and is back."""
    port = free_port()
    async with engine_of(f"localhost:{port}", nats_url):
        async with superseding_at(port) as first:
            await beats(first)
            assert len(first.streams) == 1
        async with superseding_at(port) as again:
            await beats(again)
            assert len(again.streams) <= 2
