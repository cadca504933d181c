"""An engine says that it is ready when a call that is sent to it would run, and not before or after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from tests.integration.engine.conftest import SIM
from tests.integration.engine.harness import Session
from tests.integration.engine.manager import manager_at
from tests.support.manager import eventually
from tests.support.metrics import scraped
from tests.support.nats import free_port

from parrot_engine.backends.sim import SimBackend
from parrot_engine.main import serve
from parrot_engine.settings import EngineSettings
from parrot_runtime.lifecycle import Stop
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


class Loading(SimBackend):
    """A model whose loading the test ends."""

    def __init__(self) -> None:
        super().__init__(SIM)
        self.loaded = asyncio.Event()

    async def start(self) -> None:
        """Loads until it is loaded."""
        await self.loaded.wait()
        await super().start()


@dataclass
class Stage:
    """An engine that starts, and where its manager and its monitor are to be."""

    backend: Loading
    port: int = field(default_factory=free_port)
    monitor: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    stop: Stop = field(default_factory=Stop)

    async def says(self, status: int, why: str) -> None:
        """Returns once its readiness is this."""
        async with httpx.AsyncClient(base_url=f"http://{self.monitor}", timeout=10) as http:

            async def look() -> bool:
                try:
                    answer = await http.get("/readyz")
                except httpx.TransportError:
                    return False
                return (answer.status_code, answer.text.strip()) == (status, why)

            await eventually(look, within_s=20)
            assert (await http.get("/healthz")).status_code == 200


@pytest.fixture
async def stage(nats_url: str, bus: Bus) -> AsyncIterator[Stage]:
    """One that has begun."""
    made = Stage(Loading())
    flags = {
        "manager-address": f"127.0.0.1:{made.port}",
        "metrics-address": made.monitor,
        "nats-url": nats_url,
        "engine-id": "e-1",
        "backend": "sim",
        "drain-s": 20,
    }
    settings = EngineSettings.load([f"--{name}={value}" for name, value in flags.items()])
    engine = asyncio.create_task(serve(settings, made.backend, made.stop))
    yield made
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


async def test_it_is_ready_with_a_model_and_a_manager_until_it_is_told_to_stop(
    stage: Stage, session: Session
) -> None:
    await stage.says(503, "no manager answers yet")
    async with manager_at(stage.port) as manager:
        await stage.says(503, "the model is not loaded yet")
        stage.backend.loaded.set()
        attachment = await manager.next()
        await stage.says(200, "ready")
        attachment.run(session.program(session.text("A"), session.output("y", max_tokens=1900)))
        await attachment.reports.kind("streaming")
        stage.stop.set()
        await stage.says(503, "it is told to stop: what runs here ends, and nothing more is taken")


async def test_without_its_manager_it_is_not_ready_and_with_the_next_it_is(stage: Stage) -> None:
    stage.backend.loaded.set()
    async with manager_at(stage.port):
        await stage.says(200, "ready")
    await stage.says(503, "no manager has this engine registered")
    async with manager_at(stage.port):
        await stage.says(200, "ready")


async def test_its_metrics_are_there_before_the_model_is(stage: Stage) -> None:
    async with manager_at(stage.port):
        await stage.says(503, "the model is not loaded yet")
        assert (await scraped(stage.monitor)).value("parrot_bus_connected") == 1
        stage.backend.loaded.set()
        await stage.says(200, "ready")
        found = await scraped(stage.monitor)
        assert found.value("parrot_engine_info", engine_id="e-1", model="sim") == 1
        assert found.value("parrot_engine_free_tokens") > 0
