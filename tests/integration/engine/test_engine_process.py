"""The engine as its own process: told to stop, killed, and with its model's process killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from tests.integration.engine.harness import WAIT_S, Session
from tests.integration.engine.manager import Attachment, manager_at
from tests.support.nats import free_port, temporary_nats

from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.bus import connected

pytestmark = pytest.mark.anyio

MODEL_LOADS_WITHIN_S = 180


@asynccontextmanager
async def engine(port: int, nats_url: str, *flags: str) -> AsyncIterator[Process]:
    """An engine of its own process; whatever is left of it is killed in the end."""
    async with connected(nats_url, "manager", 5):
        # The streams are a manager's to make, which is none here.
        pass
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "parrot_engine", "--manager-address", f"127.0.0.1:{port}", "--nats-url", nats_url, *flags),
        stderr=PIPE,
    )
    children: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.returncode is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for child in children:
            child.kill()
        await process.communicate()


def program(session: Session, max_tokens: int) -> engine_pb2.RunProgram:
    return session.program(session.text("A lighthouse is"), session.output("y", max_tokens=max_tokens))


async def started(attachment: Attachment, session: Session, max_tokens: int) -> None:
    attachment.run(program(session, max_tokens))
    await attachment.reports.kind("streaming")


async def exit_of(process: Process) -> tuple[int, str]:
    """The exit status, and what was said on stderr."""
    _, said = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode or 0, said.decode()


async def test_told_to_stop_it_finishes_what_runs_and_exits_with_0(nats_url: str) -> None:
    port, session = free_port(), Session()
    async with manager_at(port) as manager, engine(port, nats_url, "--backend", "sim") as process:
        attachment = await manager.next()
        await started(attachment, session, 200)
        process.send_signal(signal.SIGTERM)
        status, _ = await exit_of(process)
    assert status == 0
    assert attachment.reports.kinds() == ["started", "streaming", "draining", "done"]


async def test_told_to_stop_while_the_bus_is_away_it_ends_soon_after_its_grace() -> None:
    port, session = free_port(), Session()
    with temporary_nats() as nats:
        flags = ("--backend", "sim", "--drain-s", "0.5")
        async with manager_at(port) as manager, engine(port, nats.url, *flags) as process:
            attachment = await manager.next()
            await started(attachment, session, 20_000)
            nats.kill()
            process.send_signal(signal.SIGTERM)
            # Published values are tried for a minute, and so is what was streamed.
            status, said = await asyncio.wait_for(exit_of(process), 30)
    assert status == 0, said
    assert "stopped before the bus had everything" in said


async def test_killed_its_stream_breaks_without_a_word(nats_url: str) -> None:
    port, session = free_port(), Session()
    async with manager_at(port) as manager, engine(port, nats_url, "--backend", "sim") as process:
        attachment = await manager.next()
        await started(attachment, session, 20_000)
        process.kill()
        await asyncio.wait_for(attachment.ended.wait(), WAIT_S)
        await exit_of(process)
    assert attachment.reports.kinds() == ["started", "streaming"]


async def test_a_model_that_is_not_there_ends_it_with_the_reason(nats_url: str) -> None:
    port = free_port()
    async with manager_at(port), engine(port, nats_url, "--model", "/nowhere") as process:
        status, said = await exit_of(process)
    assert status == 1
    assert said.splitlines()[-1].startswith("parrot-engine: there is no folder /nowhere")


@pytest.mark.vllm
@pytest.mark.timeout(240)
async def test_when_the_models_process_is_killed_it_ends_with_the_reason(nats_url: str) -> None:
    port, session = free_port(), Session()
    async with manager_at(port) as manager, engine(port, nats_url, "--kv-cache-mib", "256") as process:
        attachment = await manager.next(MODEL_LOADS_WITHIN_S)
        await started(attachment, session, 4000)
        children = psutil.Process(process.pid).children(recursive=True)
        max(children, key=lambda child: child.memory_info().rss).kill()
        status, said = await exit_of(process)
    assert status == 1
    assert "parrot-engine: the backend died" in said
    assert attachment.reports.kinds() == ["started", "streaming"]


@pytest.mark.vllm
@pytest.mark.timeout(240)
async def test_killed_it_leaves_no_model_process_behind(nats_url: str) -> None:
    port = free_port()
    async with manager_at(port) as manager, engine(port, nats_url, "--kv-cache-mib", "256") as process:
        await manager.next(MODEL_LOADS_WITHIN_S)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.kill()
        await exit_of(process)
        assert psutil.wait_procs(children, timeout=WAIT_S)[1] == []
