"""The control stream against a manager that a test plays: attach, run, lose, attach again, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tests.integration.engine.conftest import SIM
from tests.integration.engine.harness import WAIT_S, Session
from tests.integration.engine.manager import manager_at
from tests.support.nats import free_port

from parrot_engine.backends.sim import SimBackend
from parrot_engine.main import serve
from parrot_engine.settings import EngineSettings
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop

pytestmark = pytest.mark.anyio


@dataclass
class Stage:
    """An engine on the way, and where its manager is to be."""

    port: int
    backend: SimBackend
    stop: Stop
    engine: asyncio.Task[None]

    async def finished(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.engine), WAIT_S)


def made_settings(port: int, nats_url: str, timeout_s: float) -> EngineSettings:
    flags = {
        "manager-address": f"127.0.0.1:{port}",
        "nats-url": nats_url,
        "engine-id": "e-1",
        "backend": "sim",
        "drain-s": 5,
        "connect-timeout-s": timeout_s,
    }
    return EngineSettings.load([f"--{name}={value}" for name, value in flags.items()])


@pytest.fixture
async def stage(nats_url: str) -> AsyncIterator[Stage]:
    port = free_port()
    settings = made_settings(port, nats_url, WAIT_S)
    backend, stop = SimBackend(SIM), Stop()
    engine = asyncio.create_task(serve(settings, backend, stop))
    yield Stage(port, backend, stop, engine)
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


def program(session: Session, call_id: str = "c-1", max_tokens: int = 40) -> engine_pb2.RunProgram:
    output = session.output(f"y-{call_id}", max_tokens=max_tokens)
    return session.program(session.text("A"), output, call_id=call_id)


async def test_an_engine_says_what_it_is_and_that_it_lives(stage: Stage) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        registration = attachment.registration
        assert (registration.engine_id, registration.model, registration.backend) == ("e-1", "sim", "sim")
        assert registration.context_window_tokens == 2048
        assert registration.capacity == 8
        await attachment.reports.until(lambda event: event.WhichOneof("event") == "heartbeat")


async def test_programs_come_in_and_events_go_out(stage: Stage, session: Session) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session))
        await attachment.reports.kind("done")
        assert attachment.reports.kinds() == ["started", "streaming", "done"]


async def test_a_heartbeat_counts_what_runs(stage: Stage, session: Session) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=1900))
        beat = await attachment.reports.until(lambda event: event.heartbeat.running == 1)
        assert 0 < beat.heartbeat.kv_used_fraction < 1


async def test_a_cancel_is_carried_out(stage: Stage, session: Session) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=1900))
        await attachment.reports.kind("streaming")
        attachment.cancel(session.ref())
        await attachment.reports.kind("cancelled")


async def test_what_runs_survives_its_manager_and_is_named_at_the_next(
    stage: Stage, session: Session
) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=1900))
        await attachment.reports.kind("streaming")
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        assert [ref.call_id for ref in attachment.registration.attempts] == ["c-1"]
        await attachment.reports.kind("done")


async def test_what_ends_while_no_manager_is_there_is_named_and_then_reported(
    stage: Stage, session: Session
) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=400))
        await attachment.reports.kind("streaming")
    async with asyncio.timeout(WAIT_S):
        while stage.backend.stats().contexts:  # noqa: ASYNC110  (a backend has no event for it)
            await asyncio.sleep(0)
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        assert [ref.call_id for ref in attachment.registration.attempts] == ["c-1"]
        await attachment.reports.kind("done")


async def test_a_stream_that_the_manager_ends_is_opened_again(stage: Stage) -> None:
    async with manager_at(stage.port) as manager:
        (await manager.next()).end()
        await manager.next()


async def test_told_to_stop_an_engine_says_so_finishes_what_runs_and_ends_its_stream(
    stage: Stage, session: Session
) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=200))
        await attachment.reports.kind("streaming")
        stage.stop.set()
        await stage.finished()
        await asyncio.wait_for(attachment.ended.wait(), WAIT_S)
        assert attachment.reports.kinds() == ["started", "streaming", "draining", "done"]


async def test_told_to_stop_without_a_manager_an_engine_stops(stage: Stage) -> None:
    async with manager_at(stage.port) as manager:
        await manager.next()
    stage.stop.set()
    await stage.finished()


async def test_an_engine_whose_backend_died_ends_with_the_reason_and_without_a_goodbye(
    stage: Stage, session: Session
) -> None:
    async with manager_at(stage.port) as manager:
        attachment = await manager.next()
        attachment.run(program(session, max_tokens=1900))
        await attachment.reports.kind("streaming")
        stage.backend.die("out of memory")
        with pytest.raises(Fault, match="out of memory"):
            await stage.finished()
        assert attachment.reports.kinds() == ["started", "streaming"]


async def test_an_engine_that_is_refused_says_why_and_ends(stage: Stage) -> None:
    async with manager_at(stage.port) as manager:
        manager.refusal = Fault(errors.INVALID_REQUEST, "the id e-1 is taken")
        with pytest.raises(Fault, match="e-1 is taken"):
            await stage.finished()


async def test_an_engine_that_finds_no_manager_says_so(nats_url: str) -> None:
    settings = made_settings(free_port(), nats_url, 0.3)
    with pytest.raises(Fault, match="no manager answers"):
        await serve(settings, SimBackend(), Stop())


async def test_told_to_stop_while_it_waits_for_its_manager_an_engine_does_not_wait(stage: Stage) -> None:
    stage.stop.set()
    await asyncio.wait_for(asyncio.shield(stage.engine), WAIT_S / 2)
