"""The control stream against a manager that a test plays: attach, run, lose, attach again, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.integration.engine.conftest import SIM
from tests.integration.engine.harness import WAIT_S, Reports, Session
from tests.support.nats import free_port

from parrot_engine.backends.sim import SimBackend
from parrot_engine.main import serve
from parrot_engine.settings import EngineSettings
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop

pytestmark = pytest.mark.anyio


@dataclass
class Attachment:
    """One stream of one engine, as its manager sees it."""

    registration: engine_pb2.Registration
    reports: Reports = field(default_factory=Reports)
    commands: asyncio.Queue[engine_pb2.AttachResponse | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, program: engine_pb2.RunProgram) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(run=program))

    def cancel(self, ref: engine_pb2.AttemptRef) -> None:
        self.commands.put_nowait(engine_pb2.AttachResponse(cancel=engine_pb2.CancelAttempt(ref=ref)))

    def end(self) -> None:
        """Ends the stream from the manager's side."""
        self.commands.put_nowait(None)


class Manager(engine_pb2_grpc.EngineControlServiceServicer):
    """Takes whoever attaches, unless told to refuse."""

    def __init__(self) -> None:
        self.attached: asyncio.Queue[Attachment] = asyncio.Queue()
        self.refusal: Fault | None = None

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[engine_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[engine_pb2.AttachResponse]:
        first = await anext(aiter(request_iterator))
        if self.refusal is not None:
            trailer = ((rpc.FAILURE_KEY, self.refusal.to_failure().SerializeToString()),)
            await context.abort(self.refusal.kind.grpc, "refused", trailing_metadata=trailer)
        attachment = Attachment(first.registration)
        self.attached.put_nowait(attachment)
        yield engine_pb2.AttachResponse(registered=engine_pb2.Registered(heartbeat_interval_ms=20))
        listening = asyncio.create_task(self._listen(request_iterator, attachment))
        try:
            while (command := await attachment.commands.get()) is not None:
                yield command
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, events: AsyncIterator[engine_pb2.AttachRequest], attachment: Attachment) -> None:
        async for event in events:
            attachment.reports.put(event)
        attachment.ended.set()
        attachment.end()

    async def next(self) -> Attachment:
        return await asyncio.wait_for(self.attached.get(), WAIT_S)


@dataclass
class Stage:
    """An engine on the way, and where its manager is to be."""

    port: int
    backend: SimBackend
    stop: Stop
    engine: asyncio.Task[None]

    async def finished(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.engine), WAIT_S)


@asynccontextmanager
async def manager_at(port: int) -> AsyncIterator[Manager]:
    server, manager = rpc.server(), Manager()
    engine_pb2_grpc.add_EngineControlServiceServicer_to_server(manager, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield manager
    finally:
        await server.stop(0)


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


@pytest.fixture
def session() -> Session:
    return Session()


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
