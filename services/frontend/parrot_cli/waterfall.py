"""Calls as bars over time: a letter is a stage, a capital one stands on the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from parrot_cli.screen import line_of, span

LETTERS: Final = {
    "client": "l",
    "network": "n",
    "admission": "a",
    "inputs": "i",
    "queue": "q",
    "static_prefill": "s",
    "dynamic_prefill": "p",
    "decode": "d",
    "transforms": "t",
    "commit": "c",
    "retries": "r",
    "running": "x",
    "unexplained": "u",
}
COLOURS: Final = {
    "client": "magenta",
    "network": "bright_blue",
    "inputs": "dim",
    "queue": "yellow",
    "static_prefill": "blue",
    "dynamic_prefill": "cyan",
    "decode": "green",
    "retries": "red",
    "running": "cyan",
    "unexplained": "red",
}
NAME: Final = 24
NARROWEST: Final = 16


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stage of a call, in ms from the session's begin."""

    stage: str
    start_ms: float
    end_ms: float


def rows_of(trace: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], columns: int) -> Iterator[Text]:
    """A line a call: its bar, how long it took, its name."""
    path = _path(trace)
    ids = max((len(call["id"]) for call in calls), default=0)
    bar = max(NARROWEST, columns - ids - NAME - 14)
    for call in [*_between(trace), *calls]:
        line = Text(f"{call['id']:<{ids}} ", "bold" if call["on_path_ms"] else "dim")
        line.append_text(bar_of(call, path.get(call["id"], ()), trace["total_ms"], bar))
        line.append(f" {span(call['ms']):>10} ")
        line.append(line_of(call["name"], NAME), "bold" if call["on_path_ms"] else "dim")
        yield line


def bar_of(call: Mapping[str, Any], path: Sequence[Stretch], total_ms: float, columns: int) -> Text:
    """A call's bar: each column shows what took most of its time, on the path before what was not."""
    bar = Text("▏")
    own = [_stretch(one) for one in call["stages"]]
    for column in range(columns):
        start_ms, end_ms = (total_ms * place / columns for place in (column, column + 1))
        held = _most(path, start_ms, end_ms)
        stage = held or _most(own, start_ms, end_ms)
        letter = LETTERS.get(stage, "?") if stage else " "
        bar.append(letter.upper() if held else letter, COLOURS.get(stage, ""))
    return bar.append("▕")


def _most(stretches: Sequence[Stretch], start_ms: float, end_ms: float) -> str:
    """The stage that has most of a span of time; empty: none has any."""
    shares: dict[str, float] = {}
    for one in stretches:
        if (overlap_ms := min(one.end_ms, end_ms) - max(one.start_ms, start_ms)) > 0:
            shares[one.stage] = shares.get(one.stage, 0.0) + overlap_ms
    return max(shares, key=lambda stage: shares[stage]) if shares else ""


def _between(trace: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What of the path is in no call, as a row of its own, if there is anything."""
    lasted_ms = sum(segment["ms"] for segment in trace["critical_path"] if not segment["call_id"])
    if lasted_ms:
        yield {"id": "", "name": "(between calls)", "ms": lasted_ms, "on_path_ms": lasted_ms, "stages": []}


def _path(trace: Mapping[str, Any]) -> dict[str, list[Stretch]]:
    found: dict[str, list[Stretch]] = {}
    for segment in trace["critical_path"]:
        found.setdefault(segment["call_id"], []).append(_stretch(segment))
    return found


def _stretch(found: Mapping[str, Any]) -> Stretch:
    return Stretch(found["stage"], found["start_ms"], found["start_ms"] + found["ms"])
