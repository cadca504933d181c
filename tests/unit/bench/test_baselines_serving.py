"""The servers that baselines run on: set as Parrot's engine, started once, and gone with all they started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.waiting import until

from parrot_bench import serving, vllm_server
from parrot_bench.serving import Endpoints, Variant, endpoints, engine_flags
from parrot_bench.systems.base import Settings, Unavailable
from parrot_bench.systems.client import make
from parrot_engine.backends.vllm.arguments import engine_arguments
from parrot_engine.main import vllm_options
from parrot_engine.settings import EngineSettings

pytestmark = pytest.mark.anyio

PROGRAM = "tests.support.counting_server"
PARENT = f"""
import asyncio, sys
from pathlib import Path
from parrot_bench import serving
from parrot_bench.systems.base import Settings
serving.PROGRAM = "{PROGRAM}"
async def main():
    async with serving.endpoints(serving.Variant(), Settings(Path(sys.argv[1])), lambda line: None) as found:
        print(*found.pids, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def nothing(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of servers that start in no time."""
    monkeypatch.setattr(serving, "PROGRAM", PROGRAM)
    return Settings(tmp_path)


def alive(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def tree(found: Endpoints, folder: Path) -> set[int]:
    """The servers' processes, and those they started."""
    lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    return {*found.pids, *(int(line.split()[1]) for line in lines if line.startswith("child "))}


def gone(pids: set[int]) -> Callable[[], bool]:
    """Whether none of them is left."""
    return lambda: not any(map(alive, pids))


async def test_what_several_ask_for_is_started_once_and_stopped_after_the_last(settings: Settings) -> None:
    first, second, other = (
        make("client", settings),
        make("client", settings),
        make("client-priority", settings),
    )
    await asyncio.gather(*(system.start(nothing) for system in (first, second, other)))
    assert first.pids() == second.pids() != other.pids()
    plain = set(first.pids())
    await first.stop()
    assert all(map(alive, plain))
    assert first.pids() == frozenset()
    await second.stop()
    assert not any(map(alive, plain))
    assert all(map(alive, other.pids()))
    await other.stop()


async def test_there_are_as_many_servers_as_engines_and_all_of_their_processes_end(
    settings: Settings,
) -> None:
    async with endpoints(Variant(), replace(settings, engines=3), nothing) as found:
        pids = tree(found, settings.folder)
        assert len(found.urls) == len(found.pids) == 3
        assert len(pids) == 6
        assert all(map(alive, pids))
        assert found.model == "counting"
    until(gone(pids))


async def test_a_server_that_ends_says_why_and_the_others_are_stopped(settings: Settings) -> None:
    with pytest.raises(
        Unavailable, match=r"exited with code 1: ValueError: there is no such dtype; its log: "
    ) as raised:
        async with endpoints(Variant(), replace(settings, dtype="broken"), nothing):
            pass
    assert str(raised.value).endswith(f"{settings.folder / 'vllm-plain-1.log'}")


async def test_a_server_that_is_never_ready_is_given_up_with_progress_until_then(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "READY_WITHIN_S", 2.0)
    monkeypatch.setattr(serving, "SAY_EACH_S", 0.1)
    said: list[str] = []
    with pytest.raises(Unavailable, match="not ready within 2 s"):
        async with endpoints(Variant(priority=True), replace(settings, dtype="late"), said.append):
            pass
    assert said
    assert said[-1].startswith("vllm priority 1: ")
    until(gone(tree(Endpoints((), ""), settings.folder)))


async def test_a_start_that_is_cancelled_leaves_no_process(settings: Settings) -> None:
    starting = asyncio.Event()
    system = make("client", replace(settings, dtype="late"))

    def say(line: str) -> None:
        starting.set()

    task = asyncio.create_task(system.start(say))
    async with asyncio.timeout(60):
        await starting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    pids = tree(Endpoints((), ""), settings.folder)
    until(gone(pids))
    await system.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_end_with_who_started_them_however_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        found = Endpoints((), "", frozenset(map(int, parent.stdout.readline().split())))
        pids = tree(found, tmp_path)
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.send_signal(number)
        parent.wait()
    until(gone(pids), within_s=30)


async def test_a_failed_start_can_be_tried_again(settings: Settings) -> None:
    for dtype in ("broken", "broken", "bfloat16"):
        system = make("client", replace(settings, dtype=dtype))
        try:
            await system.start(nothing)
        except Unavailable:
            assert dtype == "broken"
        else:
            assert dtype == "bfloat16"
        await system.stop()


async def test_what_the_shell_says_of_services_reaches_no_server(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARROT_ATTENTION", "parrot")
    monkeypatch.setenv("PARROT_CACHE_DIR", "/models")
    async with endpoints(Variant(), settings, nothing) as found:
        (pid,) = found.pids
        told = psutil.Process(pid).environ()
    assert {name for name in told if name.startswith("PARROT_")} == {"PARROT_CACHE_DIR"}


def arguments(variant: Variant, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """What vLLM is given on CPU: by a Parrot engine, and by a baseline's server."""
    own, rest = vllm_server.parse(["--port", "8000", *engine_flags(variant, settings)])
    options = vllm_options(EngineSettings.load(rest))
    engine = engine_arguments(options, Path("/models/m"), "m", on_cpu=True)
    return engine, vllm_server.server_arguments(engine, port=own.port, priority=own.priority, ngram=own.ngram)


def test_a_baseline_is_set_as_the_engine_but_for_what_is_named(tmp_path: Path) -> None:
    settings = Settings(tmp_path, dtype="float32", step_tokens=256, kv_cache_mib=700, threads=2)
    engine, server = arguments(Variant(), settings)
    differing = {name for name in engine if server.get(name) != engine[name]}
    assert differing == {"max_num_seqs", "scheduling_policy"}
    assert "max_num_seqs" not in server
    assert server["enable_prefix_caching"] is True
    assert server["distributed_executor_backend"] == "uni"
    assert (server["dtype"], server["max_num_batched_tokens"]) == ("float32", 256)
    assert server["kv_cache_memory_bytes"] == 700 << 20


def test_a_baseline_has_none_of_our_kernels_even_where_the_engines_are_told_to_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARROT_ATTENTION", "parrot")
    options = vllm_options(EngineSettings.load([]))
    assert options.attention == "parrot"
    given = engine_arguments(vllm_server.without_our_kernels(options), tmp_path, "m", on_cpu=True)
    assert given["attention_backend"] == "CPU_ATTN"
    monkeypatch.setenv("PARROT_ATTENTION", "FLASH_ATTN")
    others = vllm_options(EngineSettings.load([]))
    assert vllm_server.without_our_kernels(others) == others


def test_a_baseline_loads_the_plugins_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    general, platform = "vllm.general_plugins", "vllm.platform_plugins"
    installed = [
        EntryPoint("parrot", "parrot_kernels.vllm_backend:register", general),
        EntryPoint("theirs", "theirs:register", general),
        EntryPoint("tpu", "tpu:platform", platform),
        EntryPoint("pytest", "pytest:main", "console_scripts"),
    ]

    def of(group: str) -> list[EntryPoint]:
        return [plugin for plugin in installed if plugin.group == group]

    monkeypatch.setattr(vllm_server, "entry_points", of)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert vllm_server.others_plugins() == "theirs,tpu"
    monkeypatch.setenv("VLLM_PLUGINS", "parrot,tpu")
    assert vllm_server.others_plugins() == "tpu"
    assert vllm_server.server_environment(vllm_options(EngineSettings.load([])))["VLLM_PLUGINS"] == "tpu"


def test_a_variant_changes_its_own_setting_alone(tmp_path: Path) -> None:
    _, plain = arguments(Variant(), Settings(tmp_path))
    changes = {
        Variant(priority=True): {"scheduling_policy"},
        Variant(ngram=True): {"speculative_config"},
        Variant(step_tokens=64): {"max_num_batched_tokens"},
    }
    for variant, names in changes.items():
        _, other = arguments(variant, Settings(tmp_path))
        assert {name for name in plain | other if plain.get(name) != other.get(name)} == names


def test_the_cores_are_shared_among_the_engines_unless_threads_are_given(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for engines, threads, expected in ((1, 0, cores), (cores, 0, 1), (2 * cores, 0, 1), (4, 3, 3)):
        flags = engine_flags(Variant(), Settings(tmp_path, engines=engines, threads=threads))
        assert flags[flags.index("--threads") + 1] == str(expected)


def test_flags_are_what_vllm_reads() -> None:
    given = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "off": False,
        "none": None,
        "config": {"a": [1]},
        "n": 0,
    }
    flags = vllm_server.as_flags(given)
    assert flags[:3] == ["--dtype", "bfloat16", "--enforce-eager"]
    assert json.loads(flags[4]) == {"a": [1]}
    assert flags[3::2] == ["--config", "--n"]
    assert flags[-1] == "0"
