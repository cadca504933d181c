"""What is shown says losses as plainly as gains, and names what failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parrot_bench import plotting, report
from parrot_bench.documents import ByteTokenizer
from parrot_bench.figures import Round
from parrot_bench.graphs import Application, Call, Text, Workload
from parrot_bench.running import Outcomes, Plan
from parrot_bench.systems.base import CallOutcome, Outcome, Settings
from parrot_bench.workloads import WORKLOADS

ONE = Workload("one", (Application("a", (Call("x", (Text("t"),), 3),), ("x",)),))
CALL = Call("x", (Text("t"),), 3)
MIXED = Workload(
    "mixed",
    (Application("a", (CALL,), ("x",)), Application("c", (CALL,), ("x",), kind="chat", objective="ttft")),
)


def took(system: str, number: int, e2e_ms: float, error: str = "", idle_cpu_s: float = 0.0) -> Round:
    chat = Outcome("c", e2e_ms / 10, (CallOutcome("x", 0.0, e2e_ms / 20, e2e_ms / 10, 3, 3),))
    outcomes = {"a": Outcome("a", e2e_ms, error=error), "c": chat}
    return Round(system, number, 0, MIXED, outcomes, e2e_ms, idle_cpu_s)


def said(*rounds: Round, rtt_ms: float = 0.0, **lost: str) -> str:
    settings = Settings(Path(), rtt_ms=rtt_ms)
    return "\n".join(report.remarks(rounds, Outcomes(list(rounds), lost), settings))


def test_a_loss_is_said_to_be_one() -> None:
    text = said(
        took("parrot", 0, 200), took("client", 0, 100), took("parrot", 1, 200), took("client", 1, 160)
    )
    assert "parrot LOSES to client: it takes 1.538 times as long (ratio 0.500 to 0.800, 2/2 rounds)" in text
    chats = "chats' TTFT p50: the best baseline is client, over ours 0.650"
    assert f"{chats} (0.500 to 0.800, 2/2 rounds, 2 chats), parrot LOSES" in text
    assert "goodput: the best baseline is client, ours over it 0.650" in text


def test_a_gain_is_said_with_its_spread_and_what_is_level_is_level() -> None:
    text = said(took("parrot", 0, 100), took("client", 0, 150), took("langchain", 0, 100))
    assert "client takes 1.500 times as long as parrot (1.500 to 1.500, 1/1 rounds)" in text
    assert "langchain and parrot are level" in text
    assert "LOSES" not in text
    # A median above 1 is no gain where a round says otherwise.
    text = said(took("parrot", 0, 100), took("client", 0, 90), took("parrot", 1, 100), took("client", 1, 150))
    assert "level: 1.200 (0.900 to 1.500, 2/2 rounds)" in text


def test_the_network_is_always_told_and_so_is_what_failed() -> None:
    text = said(took("client", 0, 100, "HTTP 500"), rtt_ms=50, langchain="it is not installed")
    assert "adds 50 ms" in text
    assert "client FAILED in 1 applications, first in a: HTTP 500" in text
    assert "langchain was NOT measured: it is not installed" in text
    assert "adds 0 ms" in said()


def test_servers_that_were_not_idle_are_told() -> None:
    assert "not idle while parrot ran" in said(took("parrot", 0, 1000, idle_cpu_s=0.11))
    assert "idle" not in said(took("parrot", 0, 1000, idle_cpu_s=0.09))


def test_the_table_has_the_workloads_times_and_a_row_a_system() -> None:
    heads, rows = report.rows([took("parrot", 0, 1000), took("parrot", 1, 3000), took("client", 0, 1500)])
    assert heads == [
        "SYSTEM",
        "#ROUNDS",
        "#END TO END, S",
        "#TTFT P50, S",
        "#TTFT P95, S",
        "#TPOT P95, S",
        "#CHATS",
        "#GOODPUT/S",
        "#OVER OURS",
    ]
    assert [row[:3] for row in rows] == [
        ["parrot", "2/2", "2.000 (1.000-3.000)"],
        ["client", "1/2", "1.500"],
    ]
    assert [dict(zip(heads, row, strict=True))["#CHATS"] for row in rows] == ["2", "1"]
    assert [row[-1] for row in rows] == ["-", "1.500"]


def test_a_round_that_failed_is_none_of_those_that_count() -> None:
    rounds = [took("parrot", 0, 100), took("client", 0, 150, "broke"), took("parrot", 1, 100)]
    rounds.append(took("client", 1, 200))
    assert [row[1] for row in report.rows(rounds)[1]] == ["2/2", "1/2"]
    assert "2.000 times as long as parrot (2.000 to 2.000, 1/2 rounds)" in said(*rounds)


def test_of_one_round_it_is_said_that_noise_cannot_be_told() -> None:
    assert "noise" in said(took("parrot", 0, 100), took("client", 0, 150))
    assert "noise" not in said(took("parrot", 0, 100), took("parrot", 1, 100))


def test_a_baseline_without_any_goodput_is_told_and_so_is_ours() -> None:
    none = [Round(s, 0, 0, ONE, {"a": Outcome("a", 9.0, error="broke")}, 9.0) for s in ("parrot", "client")]
    fine = [Round(s, 0, 0, ONE, {"a": Outcome("a", 9.0)}, 9.0) for s in ("parrot", "client")]
    assert "goodput: the best baseline, client, has none" in said(fine[0], none[1])
    assert "goodput: the best baseline is client, ours over it 0.000" in said(none[0], fine[1])


def test_how_much_of_the_background_was_done_stands_beside_how_long_it_took() -> None:
    background = Application("b", (CALL,), ("x",), kind="background")
    loaded = Workload("chain-loaded", (Application("a", (CALL,), ("x",)), background))
    both = {"a": Outcome("a", 500.0), "b": Outcome("b", 100.0)}
    rounds = [
        Round("parrot", 0, 0, loaded, {"a": both["a"]}, 500.0),
        Round("client", 0, 0, loaded, both, 500.0),
    ]
    heads, rows = report.rows(rounds)
    assert [dict(zip(heads, row, strict=True))["#BACKGROUND/S"] for row in rows] == ["0.000", "2.000"]
    assert "background's requests done each second: the best baseline is client, ours over it 0.000" in said(
        *rounds
    )


def test_of_servers_that_were_not_started_here_no_setting_is_told(tmp_path: Path) -> None:
    def config(**given: Any) -> Any:
        settings = Settings(tmp_path, **given)
        plan = Plan("mixed", WORKLOADS["mixed"].quick, ["text"], ByteTokenizer(), ["parrot"], settings)
        return report.content(plan, Outcomes(), {})["config"]

    started = config(threads=3)
    assert started["started_engines"]["threads"] == 3
    assert "dtype" not in started
    given: dict[str, Any] = {"url": "http://a:1", "endpoints": ("http://b:2/v1",)}
    assert config(**given)["started_engines"] is None
    text = "\n".join(report.remarks([], Outcomes(), Settings(tmp_path, **given)))
    assert "behind http://a:1, http://b:2/v1 are set is not known" in text


def test_a_system_of_which_every_round_failed_has_a_row_without_times() -> None:
    heads, rows = report.rows([took("parrot", 0, 1000), took("client", 0, 10, "broke")])
    assert dict(zip(heads, rows[1], strict=True))["#END TO END, S"] == "-"
    assert report.rows([])[1] == []


def test_what_is_written_has_every_sample_and_what_it_was_run_with(tmp_path: Path) -> None:
    shape = WORKLOADS["mixed"].quick
    plan = Plan("mixed", shape, ["text"], ByteTokenizer(), ["parrot"], Settings(tmp_path, rtt_ms=5), seed=3)
    out = tmp_path / "out.json"
    outcomes = Outcomes([took("parrot", 0, 1000), took("client", 0, 10, "broke")], {"langchain": "missing"})
    report.write(out, report.content(plan, outcomes, {"cores": 2}))
    found = json.loads(out.read_text())
    assert found["config"]["rtt_ms"] == 5
    assert found["config"]["seed"] == 3
    assert found["config"]["shape"]["chunks"] == shape.chunks
    assert str(tmp_path) not in out.read_text()
    assert found["machine"] == {"cores": 2}
    assert found["not_measured"] == {"langchain": "missing"}
    assert [s["applications"][0]["error"] for s in found["samples"]] == ["", "broke"]
    assert found["samples"][0]["applications"][1]["calls"][0]["first_ms"] == 50
    assert found["systems"]["parrot"]["e2e_ms"] == {
        "median": 1000,
        "least": 1000,
        "most": 1000,
        "rounds": 1,
        "chats": 0,
    }
    assert found["summary"]["e2e_ms"] == 1000


@pytest.mark.parametrize("suffix", plotting.SUFFIXES)
def test_a_picture_is_drawn_of_each_kind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plot{suffix}"
    plotting.draw(path, [took("parrot", 0, 1000), took("client", 0, 1500, "broke")], "mixed: <a> & $b$")
    assert path.stat().st_size > 1000


def test_there_is_no_picture_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plotting.draw(tmp_path / "plot.svg", [took("parrot", 0, 1000, "broke")], "none")
