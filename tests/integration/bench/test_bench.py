"""`parrot bench` runs every workload, compares, writes, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.up import Up, gone
from tests.support.waiting import until

from parrot_bench.workloads import WORKLOADS
from parrot_cli.child import tethered

SYSTEMS = "parrot,client,langchain"


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parrot_cli", "bench", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=environment)


@pytest.fixture
def on(site: Up, endpoint: str) -> list[str]:
    return ["--quick", "--backend", "sim", "--url", site.url, "--endpoint", endpoint]


def calls(sample: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [call for each in sample["applications"] if each["kind"] == kind for call in each["calls"]]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_runs_on_parrot_and_on_a_client(workload: str, on: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = bench(tmp_path, workload, *on, "--systems", "parrot,client", "--json", str(out))
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())
    samples = {sample["system"]: sample for sample in found["samples"]}
    counts = [
        sorted(call["output_tokens"] for call in calls(samples[system], "application"))
        for system in ("parrot", "client")
    ]
    assert counts[0] == counts[1] != []
    assert found["summary"]["e2e_ratio_client"] > 0
    assert found["summary"]["goodput_ratio"] > 0
    assert list(tmp_path.glob("parrot-bench-*")) == []
    if workload == "mixed":
        assert {f"chat_{name}_ratio" for name in ("ttft_p50", "ttft_p95", "tpot_p95")} <= set(
            found["summary"]
        )
        for sample in samples.values():
            assert all(
                call["start_ms"] <= call["first_ms"] <= call["end_ms"] for call in calls(sample, "chat")
            )


def test_systems_take_turns_and_the_picture_shows_them(on: list[str], tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    arguments = [
        "--systems",
        SYSTEMS,
        "--repeat",
        "2",
        "--rtt-ms",
        "4",
        "--json",
        str(out),
        "--plot",
        str(plot),
    ]
    done = bench(tmp_path, "map-reduce", *on, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    order = [(sample["round"], sample["system"]) for sample in json.loads(out.read_text())["samples"]]
    assert order == [
        *((0, system) for system in ("parrot", "client", "langchain")),
        *((1, system) for system in ("langchain", "client", "parrot")),
    ]
    assert plot.read_text().startswith("<?xml")
    assert "The network adds 4 ms" in done.stdout
    assert "6/6  parrot, round 2: e2e" in done.stderr


def test_what_fails_is_named_and_the_rest_is_shown(site: Up, tmp_path: Path) -> None:
    arguments = ["--endpoint", "http://127.0.0.1:9/v1", "--systems", "parrot,client"]
    done = bench(tmp_path, "chain", "--quick", "--backend", "sim", "--url", site.url, *arguments)
    assert done.returncode == 1
    assert "client was NOT measured" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("parrot "))
    assert row.split()[1] == "1/1"
    # What the servers logged is kept where something went wrong.
    (kept,) = tmp_path.glob("parrot-bench-*")
    assert str(kept) in done.stderr


def test_a_server_with_another_number_of_engines_is_no_part_of_a_comparison(
    on: list[str], tmp_path: Path
) -> None:
    done = bench(tmp_path, "chain", *on, "--engines", "2", "--systems", "parrot")
    assert done.returncode == 1
    assert "has 1 engines" in done.stdout


def test_an_interrupt_stops_everything_that_was_started() -> None:
    command = [sys.executable, "-m", "parrot_cli", "bench", "chain", "--quick", "--backend", "sim"]
    process = subprocess.Popen(
        tethered([*command, "--systems", "parrot", "--repeat", "1000"], signal.SIGTERM),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: any("parrot_gateway" in words for words in _commands(process.pid)), within_s=60)
        started = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said.decode()
    assert b"Traceback" not in said
    for each in started:
        until(lambda each=each: gone(each))  # type: ignore[misc]


def _commands(pid: int) -> list[list[str]]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found.append(process.cmdline())
        except psutil.NoSuchProcess:
            continue
    return found
