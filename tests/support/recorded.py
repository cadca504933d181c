"""Sessions that run on paper: what each call takes is given, and a manager's records of it come out.

This is the model the other way round: it knows nothing of paths, only what waits for what. So a stage can be
left out and the session run again, to see what that would really have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from parrot_runtime.critical_path.records import CallTimes, Lap, SessionTimes, VariableTimes
from parrot_runtime.critical_path.stages import Stage

START_MS: Final = 1_000_000.0
PARTS: Final = {
    "admission": Stage.ADMISSION,
    "queue": Stage.QUEUE,
    "dispatch": Stage.COMMIT,
    "network": Stage.NETWORK,
    "reading": Stage.INPUTS,
    "prefill": Stage.STATIC_PREFILL,
    "tail": Stage.DYNAMIC_PREFILL,
    "place": Stage.QUEUE,
    "decode": Stage.DECODE,
    "transform": Stage.TRANSFORMS,
    "publish": Stage.COMMIT,
    "collect": Stage.COMMIT,
}
"""What a call is made of, in ms each, and the stage it counts to; the network is crossed twice."""


@dataclass(frozen=True)
class Script:
    """A call to be run.

    Attributes:
        reads: the calls before it whose outputs it reads, by number.
        ahead: it is sent while those are still being made.
        takes: ms of each part.
        after: the call whose end the client waits for before it sends this one; None: none.
        client_ms: how long the client then takes.
    """

    reads: tuple[int, ...] = ()
    ahead: bool = False
    takes: dict[str, float] = field(default_factory=dict)
    after: int | None = None
    client_ms: float = 0.0

    def part(self, name: str) -> float:
        """How long a part takes."""
        return self.takes.get(name, 0.0)


@dataclass
class _Ran:
    dispatched_ms: float
    published_ms: float
    ended_ms: float
    record: CallTimes


def run(scripts: list[Script], *, exact: bool = False) -> SessionTimes:
    """The records of a session; `exact`: with fractions of ms where a manager keeps none."""
    ran: list[_Ran] = []
    for number, script in enumerate(scripts):
        ran.append(_run(number, script, ran, math.floor if not exact else float))
    variables = [
        VariableTimes(f"v{number}", f"c-{number}", one.record.ended_ms) for number, one in enumerate(ran)
    ]
    end_ms = max([START_MS, *(one.ended_ms for one in ran)])
    return SessionTimes(
        "s",
        START_MS,
        opened_ms=START_MS,
        settled_ms=end_ms,
        closing_ms=end_ms,
        ended_ms=end_ms,
        calls=tuple(one.record for one in ran),
        variables=tuple(variables),
    )


def without(scripts: list[Script], stage: Stage) -> list[Script]:
    """The same calls, each as if a stage took no time."""
    return [
        replace(
            script,
            takes={name: 0.0 if PARTS[name] is stage else ms for name, ms in script.takes.items()},
            client_ms=0.0 if stage is Stage.CLIENT else script.client_ms,
        )
        for script in scripts
    ]


def delayed(scripts: list[Script], part: str, by_ms: float) -> list[Script]:
    """The same calls, a part of each taking longer."""
    return [replace(one, takes={**one.takes, part: one.part(part) + by_ms}) for one in scripts]


def random_scripts(random: Random, most: int = 12) -> list[Script]:
    """A graph of calls."""
    scripts: list[Script] = []
    for number in range(random.randint(1, most)):
        before = range(number)
        reads = tuple(sorted(random.sample(before, min(number, random.choice([0, 1, 1, 2, 3])))))
        after = random.choice([None, None, *before]) if not reads else None
        takes = {name: random.choice([0.0, random.uniform(0, 5), random.uniform(0, 300)]) for name in PARTS}
        scripts.append(Script(reads, random.random() < 0.5, takes, after, random.uniform(0, 200)))
    return scripts


def _run(number: int, script: Script, ran: list[_Ran], kept: Callable[[float], float]) -> _Ran:
    makers = [ran[read] for read in script.reads]
    # A client waits for what ends; what it sends at once it sends at the begin.
    accepted = START_MS if script.after is None else ran[script.after].ended_ms + script.client_ms
    entered = accepted + script.part("admission")
    ready = max([entered, *(maker.ended_ms for maker in makers)])
    offered = max([entered, *(maker.dispatched_ms for maker in makers)])
    ahead = script.ahead and bool(makers) and math.floor(offered + script.part("queue")) < math.floor(ready)
    dispatched = (offered if ahead else ready) + script.part("queue")
    sent = dispatched + script.part("dispatch")
    laps, published_ms = _laps(number, script, makers, sent + script.part("network"), ahead=ahead)
    told = sent + 2 * script.part("network") + sum(lap.lasted_ms for lap in laps)
    ended = max([told + script.part("collect"), *((maker.ended_ms for maker in makers) if ahead else ())])
    record = CallTimes(
        id=f"c-{number}",
        name=f"f{number}",
        accepted_ms=_kept(accepted, kept),
        entered_ms=_kept(entered, kept),
        ready_ms=_kept(ready, kept),
        first_dispatched_ms=_kept(dispatched, kept),
        dispatched_ms=_kept(dispatched, kept),
        sent_ms=sent,
        told_ms=told,
        ended_ms=_kept(ended, kept),
        laps=laps,
        inputs=tuple(f"v{read}" for read in script.reads),
    )
    return _Ran(dispatched, published_ms, ended, record)


def _laps(
    number: int, script: Script, makers: list[_Ran], at_ms: float, *, ahead: bool
) -> tuple[tuple[Lap, ...], float]:
    began_ms = at_ms
    laps = [Lap(Stage.INPUTS, script.part("reading"))]
    at_ms += script.part("reading")
    if ahead:
        for read, maker in zip(script.reads, makers, strict=True):
            came_ms = max(at_ms, maker.published_ms + script.part("network"))
            laps.append(Lap(Stage.INPUTS, came_ms - at_ms, awaited=f"v{read}"))
            at_ms = came_ms
    prefill = ("tail", Stage.DYNAMIC_PREFILL) if ahead else ("prefill", Stage.STATIC_PREFILL)
    for name, stage in (("place", Stage.QUEUE), prefill, ("decode", Stage.DECODE)):
        laps.append(Lap(stage, script.part(name)))
    laps.append(Lap(Stage.TRANSFORMS, script.part("transform")))
    laps.append(Lap(Stage.COMMIT, script.part("publish"), published=f"v{number}"))
    return tuple(laps), began_ms + sum(lap.lasted_ms for lap in laps)


def _kept(at_ms: float, kept: Callable[[float], float]) -> float:
    return float(kept(at_ms))
