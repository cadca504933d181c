"""A crew's components are started in turn, watched, and stopped in order, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.waiting import until

from parrot_cli import crew
from parrot_cli.child import Spec
from parrot_cli.crew import FORCED_EXIT, Crew
from parrot_cli.errors import UpError
from parrot_cli.report import Report
from parrot_cli.revival import DEATHS

pytestmark = pytest.mark.anyio

# What these print says that they are ready; the signals they wait for are blocked before.
OBEDIENT = "import signal; signal.pthread_sigmask(0, {15}); print('up', flush=True); signal.sigwait({15})"
DEFIANT = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
MORTAL = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("up", flush=True)
signal.sigwait({signal.SIGUSR1})
sys.exit("oops")
"""


class Rig:
    """A crew, and what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.crew = Crew(folder, Report(as_json=True), [])
        self._capsys = capsys
        self.events: list[dict[str, Any]] = []

    def read_events(self) -> list[dict[str, Any]]:
        self.events += [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return self.events

    def told(self, kind: str) -> list[str]:
        return [event["component"] for event in self.read_events() if event["event"] == kind]

    def ready_when_it_says(self, name: str) -> Callable[[], Awaitable[str | None]]:
        async def is_ready() -> str | None:
            log = self.folder / f"{name}.log"
            return "" if log.exists() and "up" in log.read_text() else None

        return is_ready

    async def launch(
        self,
        name: str,
        code: str,
        *arguments: str,
        stage: int = 0,
        within_s: float = 5,
        revived: bool = False,
    ) -> None:
        command = [sys.executable, "-I", "-S", "-c", code, *arguments]
        spec = Spec(name, command, stop_stage=stage, stop_within_s=within_s)
        await self.crew.launch(spec, self.ready_when_it_says(name), within_s=20, revived=revived)

    async def end_lives(self, name: str, number: signal.Signals, lives: int) -> None:
        """Sends a component a signal in each of so many lives, and returns when it is ready for one more."""
        for ended in range(lives):
            while self.told("ready").count(name) == ended:  # noqa: ASYNC110 - a process can set no event
                await asyncio.sleep(0.01)
            ready = [
                event for event in self.events if (event["event"], event.get("component")) == ("ready", name)
            ]
            os.kill(ready[ended]["pid"], number)
        while self.told("ready").count(name) == lives:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def rig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rig:
    return Rig(tmp_path, capsys)


def stop_me() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def test_stops_stage_by_stage_when_asked(rig: Rig) -> None:
    async def start() -> None:
        for name, stage in (("store", 2), ("server", 1), ("edge", 0)):
            await rig.launch(name, OBEDIENT, stage=stage)
        stop_me()

    assert await rig.crew.run(start)
    assert rig.told("ready") == ["store", "server", "edge"]
    assert rig.told("stopped") == ["edge", "server", "store"]
    pids = [event["pid"] for event in rig.events if event["event"] == "ready"]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_stops_while_it_is_still_starting(rig: Rig) -> None:
    async def start() -> None:
        await rig.launch("first", OBEDIENT)
        stop_me()
        await rig.launch("second", "import time; time.sleep(60)")  # never ready

    assert await rig.crew.run(start)
    assert rig.told("ready") == ["first"]
    assert set(rig.told("stopped")) == {"first", "second"}


async def test_a_death_is_told_with_the_logs_end_and_ends_the_others(rig: Rig) -> None:
    async def start() -> None:
        await rig.launch("steady", OBEDIENT)
        await rig.launch("mortal", MORTAL)
        os.kill(rig.read_events()[-1]["pid"], signal.SIGUSR1)

    assert not await rig.crew.run(start)
    assert rig.told("died") == ["mortal"]
    died = next(event for event in rig.events if event["event"] == "died")
    assert died["exit"] == 1
    assert died["tail"] == ["up", "oops"]
    assert "mortal exited with code 1" in died["text"]
    assert rig.told("stopped") == ["steady"]


async def test_what_is_revived_is_started_again_and_the_others_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "PAUSE_S", 0.01)

    async def start() -> None:
        await rig.launch("steady", OBEDIENT)
        await rig.launch("mortal", MORTAL, revived=True)
        await rig.end_lives("mortal", signal.SIGUSR1, 2)
        stop_me()

    # It is told to stop by a signal that ends it otherwise than in order; that is no matter of this test.
    await rig.crew.run(start)
    assert rig.told("died") == ["mortal", "mortal"]
    died = next(event for event in rig.events if event["event"] == "died")
    assert "exited with code 1; it is started again" in died["text"]
    assert set(rig.told("stopped")) >= {"steady"}


async def test_what_dies_again_and_again_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PAUSE_S", 0.01)

    async def start() -> None:
        await rig.launch("mortal", MORTAL, revived=True)
        await rig.end_lives("mortal", signal.SIGKILL, DEATHS)

    assert not await rig.crew.run(start)
    assert rig.told("died") == ["mortal"] * DEATHS
    assert "started again" not in [event for event in rig.events if event["event"] == "died"][-1]["text"]


async def test_what_does_not_stop_is_killed_and_told(rig: Rig) -> None:
    async def start() -> None:
        await rig.launch("defiant", DEFIANT, within_s=0.1)
        stop_me()

    assert not await rig.crew.run(start)
    stopped = next(event for event in rig.read_events() if event["event"] == "stopped")
    assert not stopped["orderly"]
    assert "killed" in stopped["text"]


async def test_what_is_never_ready_is_given_up(rig: Rig) -> None:
    async def never() -> None:
        return None

    async def start() -> None:
        await rig.launch("other", OBEDIENT)
        await rig.crew.launch(Spec("slow", ["/bin/sleep", "60"]), never, within_s=0.1)

    with pytest.raises(UpError, match=r"slow was not ready within 0\.1 s; its log: .*slow\.log"):
        await rig.crew.run(start)
    assert set(rig.told("stopped")) == {"other", "slow"}


async def test_a_task_that_fails_ends_the_start(rig: Rig) -> None:
    async def start() -> None:
        await rig.crew.complete(Spec("fine", ["/bin/true"]))
        await rig.crew.complete(Spec("task", ["/bin/sh", "-c", "echo no such table; exit 4"]))

    assert not await rig.crew.run(start)
    assert rig.told("done") == ["fine"]
    died = next(event for event in rig.read_events() if event["event"] == "died")
    assert (died["component"], died["exit"], died["tail"]) == ("task", 4, ["no such table"])


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from parrot_cli.child import Spec
from parrot_cli.crew import Crew
from parrot_cli.report import Report

async def ready():
    return "" if "up" in Path("defiant.log").read_text() else None

async def main():
    crew = Crew(Path("."), Report(as_json=True), [])
    spec = Spec("defiant", [sys.executable, "-c", {DEFIANT!r}], stop_within_s=60)
    await crew.run(lambda: crew.launch(spec, ready, 20))

asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline())["event"] == "stopping"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == FORCED_EXIT
    until(lambda: not psutil.pid_exists(ready["pid"]) or psutil.Process(ready["pid"]).status() == "zombie")
