"""A real gateway before a fake manager and a real NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from tests.support.fake_manager import FakeManager, running_manager
from tests.support.gateway import RunningGateway, running_gateway

from parrot import background
from parrot_runtime.values.bus import Bus, connected


@pytest.fixture
async def manager() -> AsyncIterator[tuple[FakeManager, str]]:
    """The fake, and its address."""
    async with running_manager() as made:
        yield made


@pytest.fixture
def fake(manager: tuple[FakeManager, str]) -> FakeManager:
    """What the gateway asks."""
    return manager[0]


@pytest.fixture
async def gateway(manager: tuple[FakeManager, str], nats_url: str, bus: Bus) -> AsyncIterator[RunningGateway]:
    """A gateway that is quick to say it is alive, and to ask again, on a bus that has its streams."""
    flags = ["--heartbeat-s", "0.1", "--recheck-s", "0.2"]
    async with running_gateway(manager[1], nats_url, *flags) as made:
        yield made


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
        yield client


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """The engine's connection."""
    async with connected(nats_url, "engine", 5) as made:
        yield made


@pytest.fixture
def no_background() -> Iterator[None]:
    """Ends the SDK's loop with the test."""
    yield
    background.stop()
