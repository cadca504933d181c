"""A session's bars fit their terminal, mark the path, and move nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from parrot_cli.trace import chosen, lines_of, what_ifs_of
from parrot_cli.waterfall import COLOURS, LETTERS
from parrot_runtime.critical_path import Stage


def told(**fields: Any) -> dict[str, Any]:
    """A session of two calls, of which one held it up."""
    return {
        "session_id": "s00-1",
        "label": "",
        "state": "closed",
        "total_ms": 100.0,
        "complete": True,
        "stages": [
            {"stage": "queue", "ms": 40.0, "share": 0.4},
            {"stage": "decode", "ms": 60.0, "share": 0.6},
        ],
        "critical_path": [
            {"stage": "queue", "call_id": "c-1", "start_ms": 0.0, "ms": 40.0},
            {"stage": "decode", "call_id": "c-1", "start_ms": 40.0, "ms": 60.0},
        ],
        "calls": [
            call("c-1", 100.0, queue=(0.0, 40.0), decode=(40.0, 60.0)),
            call("c-2", 0.0, decode=(0.0, 50.0)),
        ],
        "what_if": [{"without": "queue", "total_ms": 60.0, "change": -0.4}],
        **fields,
    }


def call(name: str, on_path_ms: float, **stages: tuple[float, float]) -> dict[str, Any]:
    """A call and what it did when."""
    return {
        "id": name,
        "name": "f",
        "engine": "e-1",
        "state": "done",
        "start_ms": 0.0,
        "ms": sum(ms for _, ms in stages.values()),
        "on_path_ms": on_path_ms,
        "stages": [{"stage": stage, "start_ms": at, "ms": ms} for stage, (at, ms) in stages.items()],
    }


def test_capitals_are_the_path_and_take_their_share_of_the_line() -> None:
    _, first, second = (line.plain for line in lines_of(told(), 91))
    bar = first[first.index("▏") + 1 : first.index("▕")]
    assert bar == "Q" * 20 + "D" * 30
    assert second[second.index("▏") + 1 :].startswith("d" * 25 + " " * 25)


@pytest.mark.parametrize("columns", [1, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_unless_that_is_too_narrow_for_any(columns: int) -> None:
    for line in lines_of(told(label="a label"), columns):
        assert cell_len(line.plain) <= max(columns, 80)


def test_names_can_do_the_terminal_nothing() -> None:
    hostile = {**call("c-1", 1.0, decode=(0.0, 100.0)), "name": "\x1b[2J\u202e\n" + "x" * 500}
    for line in lines_of(told(label="\x1b]0;x\x07", calls=[hostile]), 80):
        assert "\x1b" not in line.plain
        assert "\n" not in line.plain


def test_a_session_of_no_time_is_drawn() -> None:
    assert len(list(lines_of(told(total_ms=0.0, calls=[call("c-1", 0.0)], critical_path=[]), 80))) == 2


def test_of_many_calls_those_that_held_it_up_are_shown() -> None:
    many = [call(f"c-{number}", float(number % 7), decode=(0.0, 1.0)) for number in range(100)]
    shown = chosen(many, 10)
    assert len(shown) == 10
    assert all(one["on_path_ms"] == 6.0 for one in shown)
    assert "60 more" in list(lines_of(told(calls=many), 80))[-1].plain


def test_what_ifs_say_how_much_and_what_saves_nothing_is_left_out() -> None:
    small = {"without": "commit", "total_ms": 99.9, "change": -0.001}
    lines = [line.plain for line in what_ifs_of(told(what_if=[*told()["what_if"], small])) if line]
    assert lines == ["if queue were free: -40 % (0.06 s)"]


def test_every_stage_has_a_letter_of_its_own() -> None:
    assert LETTERS.keys() == set(Stage)
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert COLOURS.keys() <= set(Stage)
