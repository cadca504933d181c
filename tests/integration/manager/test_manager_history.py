"""A real run is recorded, and plays again through the core alone to the very same commands."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.manager import ManagerUnderTest, call, serving

from parrot_manager import history
from parrot_manager.core.commands import Arm, Dispatch, Probe
from parrot_manager.core.events import AttemptDone, EngineLost
from parrot_manager.core.state import Policy
from parrot_manager.history import Step
from parrot_manager.store.base import Store
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def sim_engine(name: str, address: str, nats_url: str) -> AsyncIterator[Process]:
    """A simulated engine, in a process of its own; killed in the end."""
    command = ["-m", "parrot_engine", "--backend", "sim", "--engine-id", name, "--sim-step-ms", "5"]
    command += ["--manager-address", address, "--nats-url", nats_url]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def play(manager: ManagerUnderTest, engine: Process) -> None:
    """A diamond, whose engine dies on the way, and a session that is closed before it has finished."""
    client = manager.client
    session = await client.open(key="once")
    diamond = [call("top", ["topic"], ["a"]), call("left", ["a"], ["b"]), call("right", ["a"], ["c"])]
    await client.submit(session, [*diamond, call("bottom", ["b", "c"], ["d"])], {"topic": "the sea"}, "batch")
    await client.ended(session, "a")
    engine.kill()
    await client.ended(session, "d", within_s=40)
    other = await client.open(lazy=True)
    await client.submit(other, [call("one", [], ["x"]), call("two", ["x"], ["y"])])
    await client.get(other, "y", wait_ms=1)
    await client.close(other)


@pytest.mark.timeout(120)
async def test_a_recorded_run_replays_to_the_same_commands(
    store: Store, bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "history.jsonl"
    async with (
        serving(store, bus, history_file=file) as manager,
        sim_engine("e-1", manager.address, nats_url) as first,
    ):
        await manager.client.engine_ready("e-1")
        async with sim_engine("e-2", manager.address, nats_url):
            await manager.client.engine_ready("e-2")
            await play(manager, first)
    policy, recorded = history.read(file.read_text().splitlines())
    steps = list(recorded)
    told = [command for step in steps for command in step.told]
    assert any(isinstance(command, Dispatch) for command in told)
    assert any(isinstance(command, Probe) for command in told)
    assert {EngineLost, AttemptDone} <= {type(step.event) for step in steps}
    assert list(history.replay(policy, steps)) == []


def test_a_machine_that_changed_its_mind_is_found_out() -> None:
    opened = {"_": "Session", "id": "s00-0000000000000001", "tenant": "t", "label": "", "created_ms": 1}
    opened |= {"state": {"_": "SessionState", "": 1}, "deadline_ms": 1_000}
    event = history.decode({"_": "SessionOpened", "session": opened})
    (arm,) = next(history.replay(Policy(), [Step(event, 1, ())])).told
    assert list(history.replay(Policy(), [Step(event, 1, (arm,))])) == []
    assert isinstance(arm, Arm)
    (difference,) = history.replay(Policy(), [Step(event, 1, (replace(arm, at_ms=2),))])
    assert (difference.number, difference.told) == (1, (arm,))


def test_what_is_written_is_what_is_read() -> None:
    policy = Policy(retain_ms=7)
    assert history.decode(json.loads(json.dumps(history.encode(policy)))) == policy
    mixed = ({"a": (1, b"\xff\0"), "b": None}, "\ud7ff", 1.5, True)
    assert history.decode(json.loads(json.dumps(history.encode(mixed)))) == mixed


@pytest.mark.parametrize("line", ["[1]", '[{"_": "Leeway"}]'])
def test_a_file_that_is_no_history_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="begins with the machine's policy"):
        history.read([line])
