"""`parrot bench` refuses what makes no sense before it starts anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parrot_bench import registry
from parrot_bench.command import WrongUse, shape_of
from parrot_bench.systems.base import Settings
from parrot_bench.workloads import USES, WORKLOADS
from parrot_cli.main import app


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["chain", "--files", "4"], "--files means nothing to chain"),
        (["multi-agent", "--rate", "2"], "--rate means nothing to multi-agent"),
        (["chain", "--systems", "parrot,vllm"], "there is no system vllm"),
        (["chain", "--systems", "parrot,parrot"], "stands twice"),
        (["chain", "--ablate", "everything"], "there is no everything to switch off"),
        (["chain", "--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["chain", "--plot", "plot.gif"], "the name ends in .svg"),
        (["chain", "--data", "/nowhere/at/all", "--backend", "sim"], "--data /nowhere/at/all has no text"),
        (["chain", "--chunk-tokens", "9000000"], "chunk_tokens is 9000000"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2, done.output
    assert reason in " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [["poker"], ["chain", "--repeat", "0"], ["chain", "--rtt-ms", "-1"]])
def test_what_is_out_of_range_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["bench", *arguments]).exit_code == 2


def test_more_text_is_asked_for_where_there_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("not much")
    done = CliRunner().invoke(app, ["bench", "chain", "--backend", "sim", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "give more text with --data" in done.stderr


@pytest.mark.parametrize("workload", WORKLOADS)
def test_quick_is_smaller_and_what_is_asked_for_stands(workload: str) -> None:
    assert shape_of(workload, False, {}) == WORKLOADS[workload].shape
    assert shape_of(workload, True, {"output_tokens": 5}).output_tokens == 5
    with pytest.raises(WrongUse):
        shape_of(workload, False, {next(iter({"files", "queries"} - USES[workload]), "chunks"): 0})


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_compared_by_default_is_there(workload: str, engines: int) -> None:
    names = registry.defaults(workload, engines)
    registry.check(names)
    assert names[0] == registry.OURS
    assert {"client", "client-priority", "langchain"} <= set(names)
    assert set(registry.ROUTED) <= set(names) or engines == 1


def test_every_system_can_be_made(tmp_path: Path) -> None:
    for name in registry.NAMES:
        assert registry.make(name, Settings(tmp_path, engines=2)).name == name


def test_no_other_command_loads_the_benchmarks() -> None:
    code = "import sys, parrot_cli.main; print({'parrot_bench', 'matplotlib'} & set(sys.modules) or '')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
