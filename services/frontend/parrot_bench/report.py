"""What is shown and written of a benchmark, losses as plainly as gains."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from parrot_bench import figures
from parrot_bench.figures import Round, Spread
from parrot_bench.registry import OURS
from parrot_bench.running import Outcomes, Plan
from parrot_bench.systems.base import Settings
from parrot_bench.workloads import used

TIMES: Final = {
    "e2e_ms": "end to end",
    "background_e2e_ms": "background",
    "chat_ttft_p50_ms": "TTFT p50",
    "chat_ttft_p95_ms": "TTFT p95",
    "chat_tpot_p95_ms": "TPOT p95",
}
"""The columns of the table, in ms; those that the workload has."""
DONE: Final = "background_done_per_s"
ENGINE_SETTINGS: Final = ("dtype", "threads", "capacity", "step_tokens", "kv_cache_mib")
"""What only servers have that were started here; of others nobody knows."""
IDLE_SHARE: Final = 0.1
"""Servers that are to be idle and take more of a core than this spoil what is measured."""


def rows(rounds: Sequence[Round]) -> tuple[list[str], list[list[str]]]:
    """The table's heads, numbers' with a `#`, and a row a system."""
    table = figures.by_system(rounds)
    has = {name for of in table.values() for name in of}
    shown = [name for name in TIMES if name in has]
    heads = [
        "SYSTEM",
        "#ROUNDS",
        *(f"#{TIMES[name].upper()}, S" for name in shown),
        *(["#CHATS"] if has & set(figures.CHATS) else []),
        *(["#BACKGROUND/S"] if DONE in has else []),
        "#GOODPUT/S",
        "#OVER OURS",
    ]
    return heads, [_row(system, of, heads, shown, rounds) for system, of in table.items()]


def remarks(rounds: Sequence[Round], outcomes: Outcomes, settings: Settings) -> list[str]:
    """What the table means in words, a line each: ours against every other system, and what failed."""
    lines = [f"The network adds {settings.rtt_ms:g} ms to each round trip between client and servers."]
    if given := [url for url in (settings.url, *settings.endpoints) if url]:
        lines.append(f"How the engines behind {', '.join(given)} are set is not known.")
    if _count(rounds) == 1:
        lines.append("There was one round: what of a difference is noise can't be told.")
    table = figures.by_system(rounds)
    ratios = {system: figures.gain(rounds, "e2e_ms", system) for system in table if system != OURS}
    lines += [
        _against(system, ratio, _count(rounds)) for system, ratio in ratios.items() if ratio is not None
    ]
    for metric, label in {
        **{f"{name}_ms": f"chats' {TIMES[f'{name}_ms']}" for name in figures.RATIOS},
        DONE: "the background's requests done each second",
        "goodput_per_s": "goodput",
    }.items():
        lines += _compared(rounds, metric, label)
    for system, errors in outcomes.failures().items():
        lines.append(f"{system} FAILED in {len(errors)} applications, first in {errors[0]}")
    lines += [f"{system} was NOT measured: {reason}" for system, reason in outcomes.lost.items()]
    busy = {played.system for played in rounds if _disturbed(played)}
    if busy:
        lines.append(
            f"Other systems' servers were not idle while {', '.join(sorted(busy))} ran; without --together "
            "they are stopped"
        )
    return lines


def content(plan: Plan, outcomes: Outcomes, machine: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` writes: what was run on what, every sample, and the summary."""
    settings = {name: value for name, value in asdict(plan.settings).items() if name != "folder"}
    engine = {name: settings.pop(name) for name in ENGINE_SETTINGS}
    started = not (plan.settings.url and plan.settings.endpoints)
    return {
        "name": f"bench {plan.workload}",
        "machine": dict(machine),
        "config": {
            "workload": plan.workload,
            "shape": used(plan.workload, plan.shape),
            "systems": list(plan.systems),
            "repeat": plan.repeat,
            "seed": plan.seed,
            "together": plan.together,
            **settings,
            # Of every server that was started here, and of no other.
            "started_engines": engine | {"threads": plan.settings.engine_threads} if started else None,
        },
        "samples": [sample(played) for played in outcomes.rounds],
        "systems": {
            system: {name: asdict(spread) for name, spread in of.items()}
            for system, of in figures.by_system(outcomes.rounds).items()
        },
        "not_measured": dict(outcomes.lost),
        "summary": figures.summary(outcomes.rounds),
    }


def sample(played: Round) -> dict[str, Any]:
    """A round of a system, with every call of it."""
    return {
        "system": played.system,
        "round": played.number,
        "place": played.place,
        "wall_ms": played.wall_ms,
        "idle_cpu_s": played.idle_cpu_s,
        "metrics": figures.metrics(played),
        "applications": [
            {
                "name": application.name,
                "kind": application.kind,
                "arrival_ms": application.arrival_ms,
                "e2e_ms": outcome.e2e_ms,
                "error": outcome.error,
                "calls": [asdict(call) for call in outcome.calls],
            }
            for application in played.workload.applications
            if (outcome := played.outcomes.get(application.name)) is not None
        ],
    }


def write(path: Path, what: Mapping[str, Any]) -> None:
    """Writes it as JSON.

    Raises:
        OSError: it can't be written.
    """
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")


def _row(
    system: str,
    of: Mapping[str, Spread],
    heads: Sequence[str],
    shown: Sequence[str],
    rounds: Sequence[Round],
) -> list[str]:
    ratio = None if system == OURS else figures.gain(rounds, "e2e_ms", system)
    chats = max((of[name].chats for name in figures.CHATS if name in of), default=0)
    cells = {
        "SYSTEM": system,
        "#ROUNDS": _rounds(system, rounds),
        **{f"#{TIMES[name].upper()}, S": _seconds(of.get(name)) for name in shown},
        "#CHATS": str(chats),
        "#BACKGROUND/S": _median(of.get(DONE)),
        "#GOODPUT/S": _median(of.get("goodput_per_s")),
        "#OVER OURS": _median(ratio),
    }
    return [cells[head] for head in heads]


def _rounds(system: str, rounds: Sequence[Round]) -> str:
    """In how many of all rounds it did not fail."""
    good = sum(played.system == system and not played.errors for played in rounds)
    return f"{good}/{_count(rounds)}"


def _median(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.3f}"


def _seconds(spread: Spread | None) -> str:
    """The median, and least and most where they differ."""
    if spread is None:
        return "-"
    median, least, most = (f"{value / 1000:.3f}" for value in (spread.median, spread.least, spread.most))
    return median if least == most else f"{median} ({least}-{most})"


def _against(system: str, ratio: Spread, rounds: int) -> str:
    spread = _between(ratio, rounds)
    if ratio.least > 1:
        return f"{system} takes {ratio.median:.3f} times as long as {OURS} ({spread})"
    if ratio.most < 1:
        return f"{OURS} LOSES to {system}: it takes {1 / ratio.median:.3f} times as long (ratio {spread})"
    return f"{system} and {OURS} are level: {ratio.median:.3f} ({spread})"


def _between(ratio: Spread, rounds: int) -> str:
    chats = f", {ratio.chats} chats" if ratio.chats else ""
    return f"{ratio.least:.3f} to {ratio.most:.3f}, {ratio.rounds}/{rounds} rounds{chats}"


def _count(rounds: Sequence[Round]) -> int:
    return len({played.number for played in rounds})


def _compared(rounds: Sequence[Round], metric: str, label: str) -> list[str]:
    """Ours against the best baseline's."""
    best = figures.best_baseline(rounds, metric)
    if best is None or metric not in figures.by_system(rounds).get(OURS, {}):
        return []
    ratio = figures.gain(rounds, metric, best)
    if ratio is None:
        return [f"{label}: the best baseline, {best}, has none that ours could be compared with"]
    worse = "" if ratio.median >= 1 else f", {OURS} LOSES"
    over = "ours over it" if metric in figures.MORE_IS_BETTER else "over ours"
    spread = _between(ratio, _count(rounds))
    return [f"{label}: the best baseline is {best}, {over} {ratio.median:.3f} ({spread}){worse}"]


def _disturbed(played: Round) -> bool:
    return played.idle_cpu_s > IDLE_SHARE * played.wall_ms / 1000
