"""The stack of a benchmark: started with the settings that all systems get, waited for, and stopped."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from parrot_bench import stack
from parrot_bench.stack import ParrotStack, environment
from parrot_bench.systems.base import Settings, Unavailable
from parrot_engine.settings import EngineSettings

pytestmark = pytest.mark.anyio

UP = 'print(\'noise\', flush=True); print(\'{"event": "up", "text": "it serves"}\', flush=True)'
WAITS = "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(0)); "
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(stack, "_command", lambda *_: [sys.executable, "-c", code])


def test_what_is_set_are_settings_of_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(tmp_path, threads=3, capacity=5, step_tokens=96, kv_cache_mib=77)
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    engine = EngineSettings.load([])
    assert (engine.threads, engine.capacity, engine.step_tokens, engine.kv_cache_mib) == (3, 5, 96, 77)


def test_engines_share_the_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for engines in (1, 2, 1000):
        told = environment(Settings(tmp_path, engines=engines))
        assert told["PARROT_THREADS"] == str(max(1, cores // engines))
        assert "PARROT_CAPACITY" not in told


def test_what_the_shell_says_of_services_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARROT_SCHEDULING", "request_fifo")
    monkeypatch.setenv("PARROT_CACHE_DIR", "/models")
    settings = Settings(tmp_path, environment={"PARROT_STATIC_PREFILL": "false"})
    command = stack._command(tmp_path, 8123, settings)
    pairs = list(pairwise(command))
    assert ("-u", "PARROT_SCHEDULING") in pairs
    assert ("-u", "PARROT_CACHE_DIR") not in pairs
    assert "PARROT_STATIC_PREFILL=false" in command
    assert ("--port", "8123") in pairs


async def test_it_is_there_once_it_says_so_and_gone_once_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(monkeypatch, f"{WAITS}{UP}; signal.pause()")
    up = await ParrotStack.start("parrot", Settings(tmp_path), lambda _: None)
    os.kill(up.pid, 0)
    await up.stop()
    await up.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(up.pid, 0)


async def test_one_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "STOP_WITHIN_S", 0.05)
    program(monkeypatch, f"{DEAF}{UP}; signal.pause(); signal.pause()")
    up = await ParrotStack.start("parrot", Settings(tmp_path), lambda _: None)
    await up.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(up.pid, 0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ('print(\'{"event": "refused", "text": "no such model"}\'); raise SystemExit(1)', "no such model"),
        ("raise SystemExit('it broke')", "it broke"),
        ("raise SystemExit(3)", "exited with code 3: it logged nothing"),
    ],
)
async def test_why_it_did_not_come_up_is_said(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(monkeypatch, code)
    with pytest.raises(Unavailable, match=reason):
        await ParrotStack.start("parrot", Settings(tmp_path), lambda _: None)


async def test_one_that_never_comes_up_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "READY_WITHIN_S", 0.3)
    program(monkeypatch, f"{WAITS}signal.pause()")
    with pytest.raises(Unavailable, match=r"not ready within 0\.3 s; its log: .*parrot\.log"):
        await ParrotStack.start("parrot", replace(Settings(tmp_path), threads=1), lambda _: None)
