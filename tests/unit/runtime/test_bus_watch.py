"""A connection knows how many replicas there are, and leaves a server that sees no leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.js.errors import ServiceUnavailableError
from tests.support.eventually import eventually

from parrot_runtime.values import bus as bus_module
from parrot_runtime.values.bus import UNANSWERED, Bus, _watch

pytestmark = pytest.mark.anyio


class Servers:
    """A cluster as a client sees it.

    Attributes:
        leaves: how often the client was told to go to another server.
    """

    is_connected = True

    def __init__(self) -> None:
        self.replicas: int | None = 1
        self.leaves = 0
        self.asked = 0

    async def stream_info(self, _: str) -> Any:
        self.asked += 1
        if self.replicas is None:
            raise ServiceUnavailableError
        return SimpleNamespace(config=SimpleNamespace(num_replicas=self.replicas))

    async def force_reconnect(self) -> None:
        self.leaves += 1


@asynccontextmanager
async def watched(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """A bus whose watch looks again and again."""
    monkeypatch.setattr(bus_module, "WATCH_S", 0.001)
    bus = Bus(cast("Any", servers), cast("Any", servers))
    watching = asyncio.create_task(_watch(bus))
    try:
        yield bus
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_replicas_that_were_added_are_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    async with watched(servers, monkeypatch) as bus:
        await eventually(lambda: servers.asked > 1)
        assert not bus.is_replicated
        servers.replicas = 3
        await eventually(lambda: bus.is_replicated)


async def test_a_server_that_sees_no_leader_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    servers.replicas = 3
    async with watched(servers, monkeypatch) as bus:
        await eventually(lambda: bus.is_replicated)
        assert servers.leaves == 0
        servers.replicas = None
        before = servers.asked
        await eventually(lambda: servers.leaves == 1)
        assert servers.asked - before >= UNANSWERED


async def test_a_server_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    servers.replicas = None
    async with watched(servers, monkeypatch):
        await eventually(lambda: servers.asked > 3 * UNANSWERED)
    assert servers.leaves == 0
