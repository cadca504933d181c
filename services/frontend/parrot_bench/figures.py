"""What rounds come to: a round's metrics, and what systems are to one another over all rounds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from parrot_bench.graphs import Application, Workload
from parrot_bench.registry import OURS, is_baseline, short
from parrot_bench.systems.base import Outcome

Metrics = Mapping[str, float]

MORE_IS_BETTER: Final = frozenset({"goodput_per_s", "background_done_per_s"})
RATIOS: Final = ("chat_ttft_p50", "chat_ttft_p95", "chat_tpot_p95")
"""Times of chats that are compared with the best baseline's, without their unit."""
CHATS: Final[Mapping[str, tuple[str, float]]] = {
    "chat_ttft_p50_ms": ("ttft", 0.5),
    "chat_ttft_p95_ms": ("ttft", 0.95),
    "chat_tpot_p50_ms": ("tpot", 0.5),
    "chat_tpot_p95_ms": ("tpot", 0.95),
}
"""Percentiles of chats: of which of their times, and which share of them does not exceed it."""


@dataclass(frozen=True, slots=True)
class Round:
    """A workload as one system ran it.

    Attributes:
        number: of the round, from 0; all systems of a round ran the same workload.
        place: how many systems ran before it in this round.
        outcomes: by application; what of the background was cut off is not among them.
        wall_ms: from the workload's start to the end of the last application that is measured.
        idle_cpu_s: processors' time that the other systems' servers took meanwhile.
    """

    system: str
    number: int
    place: int
    workload: Workload
    outcomes: Mapping[str, Outcome]
    wall_ms: float
    idle_cpu_s: float = 0.0

    @property
    def errors(self) -> list[str]:
        """What failed, an application a line."""
        return [f"{name}: {outcome.error}" for name, outcome in self.outcomes.items() if outcome.error]


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over rounds.

    Attributes:
        median: of rounds; of a percentile of chats, that of the chats of all rounds together, of which a
            round alone has too few.
        least: of a round.
        most: of a round.
        rounds: how many there are.
        chats: how many were put together; of other metrics 0.
    """

    median: float
    least: float
    most: float
    rounds: int
    chats: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values don't exceed, between neighbours by their distance.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def metrics(played: Round) -> dict[str, float]:
    """A round's metrics: `e2e_ms` (the mean over applications), those of chats and of the background where
    there are some, and `goodput_per_s`: what ended without an error, in time, each second.

    `background_e2e_ms` is of what ended before the round did, and so of the quicker; `background_done_per_s`
    says how much that was.

    None is there but `goodput_per_s` when an application failed: what the others took says little then.
    """
    workload = played.workload
    good = sum(_is_good(application, played.outcomes) for application in _measured(workload))
    found = {"goodput_per_s": good / (played.wall_ms / 1000) if played.wall_ms else 0.0}
    if played.errors:
        return found
    times = [played.outcomes[application.name].e2e_ms for application in workload.of("application")]
    if times:
        found["e2e_ms"] = statistics.fmean(times)
    return found | _background(played) | _chats(played) | _cached(played)


def by_system(rounds: Sequence[Round]) -> dict[str, dict[str, Spread]]:
    """Each metric of each system over its rounds, in the order of their first rounds."""
    having: dict[str, dict[str, list[tuple[Round, float]]]] = {}
    for played in rounds:
        mine = having.setdefault(played.system, {})
        for name, value in metrics(played).items():
            mine.setdefault(name, []).append((played, value))
    return {
        system: {name: _spread(name, of) for name, of in found.items()} for system, found in having.items()
    }


def gain(rounds: Sequence[Round], metric: str, other: str, ours: str = OURS) -> Spread | None:
    """How much better we are than another system, round by round: above 1, better.

    Of a time it is the other's over ours, of what there should be more of, ours over the other's. Only
    rounds count in which both have the metric, and in which that which divides is not 0; None: there is none.
    """
    theirs = {played.number: played for played in rounds if played.system == other}
    found: list[tuple[float, Round, Round]] = []
    for our in rounds:
        their = theirs.get(our.number)
        if our.system == ours and their is not None:
            ratio = _ratio(metric, metrics(our).get(metric), metrics(their).get(metric))
            found += [] if ratio is None else [(ratio, our, their)]
    if not found:
        return None
    ratios, *both = zip(*found, strict=True)
    spread = Spread.of(ratios)
    if metric not in CHATS:
        return spread
    times = [pooled(metric, of) for of in both]
    ratio = _ratio(metric, *(percentile(each, CHATS[metric][1]) for each in times))
    return None if ratio is None else replace(spread, median=ratio, chats=min(map(len, times)))


def pooled(metric: str, rounds: Sequence[Round]) -> list[float]:
    """The times that a percentile of chats is of, from all these rounds."""
    kind, _ = CHATS[metric]
    return [time for played in rounds for time in _times_of_chats(played)[kind]]


def best_baseline(rounds: Sequence[Round], metric: str) -> str | None:
    """The baseline whose median is the best; None: none has the metric."""
    found = {
        system: of[metric].median
        for system, of in by_system(rounds).items()
        if is_baseline(system) and metric in of
    }
    choose: Callable[..., str] = max if metric in MORE_IS_BETTER else min
    return choose(found, key=found.__getitem__) if found else None


def summary(rounds: Sequence[Round]) -> dict[str, float]:
    """What a benchmark comes to, a number a metric: ours, and how we are to each other system."""
    table = by_system(rounds)
    found = {name: spread.median for name, spread in table.get(OURS, {}).items()}
    for system in table:
        if system != OURS and (ratio := gain(rounds, "e2e_ms", system)) is not None:
            found[f"e2e_ratio_{short(system)}"] = ratio.median
    compared = {"e2e_ms": "e2e_ratio_best", "goodput_per_s": "goodput_ratio"}
    compared |= {f"{name}_ms": f"{name}_ratio" for name in RATIOS}
    for metric, name in compared.items():
        best = best_baseline(rounds, metric)
        if best is not None and (ratio := gain(rounds, metric, best)) is not None:
            found[name] = ratio.median
    return found


def _spread(metric: str, of: Sequence[tuple[Round, float]]) -> Spread:
    spread = Spread.of([value for _, value in of])
    if metric not in CHATS:
        return spread
    times = pooled(metric, [played for played, _ in of])
    return replace(spread, median=percentile(times, CHATS[metric][1]), chats=len(times))


def _ratio(metric: str, ours: float | None, theirs: float | None) -> float | None:
    """How much better ours is; None: nobody can say."""
    if ours is None or theirs is None:
        return None
    over, under = (ours, theirs) if metric in MORE_IS_BETTER else (theirs, ours)
    return over / under if under else None


def _measured(workload: Workload) -> tuple[Application, ...]:
    return workload.of("application") + workload.of("chat")


def _is_good(application: Application, outcomes: Mapping[str, Outcome]) -> bool:
    outcome = outcomes.get(application.name)
    if outcome is None or outcome.error:
        return False
    return application.deadline_ms is None or outcome.e2e_ms <= application.deadline_ms


def _background(played: Round) -> dict[str, float]:
    arriving = played.workload.of("background")
    if not arriving:
        return {}
    times = [played.outcomes[each.name].e2e_ms for each in arriving if each.name in played.outcomes]
    found = {"background_e2e_ms": statistics.fmean(times)} if times else {}
    done_per_s = len(times) / (played.wall_ms / 1000) if played.wall_ms else 0.0
    return found | {"background_done_per_s": done_per_s}


def _chats(played: Round) -> dict[str, float]:
    times = _times_of_chats(played)
    return {metric: percentile(times[kind], share) for metric, (kind, share) in CHATS.items() if times[kind]}


def _times_of_chats(played: Round) -> dict[str, list[float]]:
    """What a chat's reader sees, in ms: the time to the first token, and that between tokens."""
    calls = [
        call for application in played.workload.of("chat") for call in played.outcomes[application.name].calls
    ]
    return {
        "ttft": [call.first_ms - call.start_ms for call in calls if call.first_ms is not None],
        "tpot": [call.tpot_ms for call in calls if call.tpot_ms is not None],
    }


def _cached(played: Round) -> dict[str, float]:
    """The share of prompt tokens whose KV was there already, where the system says."""
    calls = [call for outcome in played.outcomes.values() for call in outcome.calls]
    prompts = sum(call.prompt_tokens for call in calls)
    if not prompts or any(call.cached_tokens is None for call in calls):
        return {}
    return {"cached_share": sum(call.cached_tokens or 0 for call in calls) / prompts}
