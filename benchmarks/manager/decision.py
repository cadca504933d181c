"""How long the scheduler takes to decide, with up to 1,000 engines and 100,000 waiting calls.

The fleet is full and stays so: each step frees one place and asks for placements, as when a call ends
on a busy fleet; and so often a new call joins the queue. A step is what the manager's loop spends in the
scheduler for one such event: the end that is learned from, the place that is freed, the decision, and what
engines are to be told. One row is also given for an idle fleet, where each new call is placed at once.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from benchmarks.harness import Report, parser, print_table, spread
from parrot_manager.core.criteria import Objective, ObjectiveKind
from parrot_manager.core.model import Engine, Ref, Timings, Usage
from parrot_manager.core.prefixes import Prefix
from parrot_manager.core.scheduling import Fleet, QueuedCall
from parrot_runtime.lifecycle import COLLECT

ENGINES = (10, 100, 1_000)
WAITING = (1_000, 10_000, 100_000)
PLACES = 16
TENANTS = 50
FUNCTIONS = 200
GROUP = 16
SEED = 7


@dataclass
class Load:
    """A fleet under load, and what runs on it."""

    engines: int
    random: random.Random
    fleet: Fleet = field(default_factory=Fleet)
    running: list[tuple[QueuedCall, str, Ref]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    now_ms: int = 1_000_000

    def join(self) -> None:
        """The engines attach."""
        for number in range(self.engines):
            self.fleet.join(Engine(f"e-{number:04}", 1, "m", PLACES, kv_tokens=262_144))

    def call(self) -> QueuedCall:
        """A call as they come: a third throughput, a third in groups, most with a shared template."""
        number = next(self.numbers)
        draw = self.random.random()
        session = f"s-{number // GROUP:08}" if draw < 1 / 3 else f"s-{number:08}x"
        start = self.now_ms + self.random.randrange(60_000)
        kind = ObjectiveKind.THROUGHPUT if draw > 2 / 3 else ObjectiveKind.LATENCY
        objective = Objective(
            kind, "g" if draw < 1 / 3 else "", "", start + 2_000, start, self.random.randrange(30_000)
        )
        function = self.random.randrange(FUNCTIONS)
        prompt = self.random.randrange(200, 2_000)
        prefixes = (
            Prefix(1, f"template-{function}", min(150, prompt), True, True),
            Prefix(2, f"value-{session}", prompt - 20, False, True),
        )
        tenant = f"t-{self.random.randrange(TENANTS)}"
        return QueuedCall(
            self.now_ms, session, number, f"c-{number}", "m", self.now_ms, tenant, f"f-{function}",
            objective, prompt, self.random.randrange(20, 400), prefixes,
        )  # fmt: skip

    def fill(self) -> None:
        """Every place is taken, by calls that no engine holds back for others' sake."""
        for _ in range(self.engines * PLACES):
            call = self.call()
            self.fleet.ready(replace(call, objective=None))
        while self.place():
            pass

    def queue(self, calls: int) -> None:
        """So many more wait."""
        for _ in range(calls):
            self.fleet.ready(self.call())

    def place(self) -> int:
        """Asks, and carries out."""
        placements = self.fleet.place(self.now_ms)
        for placement in placements:
            ref = Ref(placement.call.session_id, placement.call.call_id, 1)
            self.fleet.dispatched(placement, ref, self.now_ms)
            self.running.append((placement.call, placement.engine_id, ref))
        self.fleet.drain_keeps()
        return len(placements)

    def end_one(self) -> None:
        """A running call ends."""
        at = self.random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        call, engine_id, ref = self.running.pop()
        usage = Usage(call.prompt_tokens, call.prompt_tokens // 2, call.max_tokens // 2)
        self.fleet.finished(ref, usage, Timings(0, 80, call.max_tokens * 8), self.now_ms)
        self.fleet.freed(engine_id, ref)
        self.fleet.forget_call(*call.key)


def measured(load: Load, steps: int) -> list[tuple[float, float]]:
    """Of so many steps, the time and the processor's time, in ms. What joins the queue is not counted."""
    times = []
    gc.collect()
    for _ in range(steps):
        load.now_ms += 7
        started, worked = time.perf_counter(), time.thread_time()
        load.end_one()
        placed = load.place()
        times.append(((time.perf_counter() - started) * 1e3, (time.thread_time() - worked) * 1e3))
        load.queue(placed)
    return times


def idle(engines: int, steps: int) -> list[tuple[float, float]]:
    """The same for steps in which a call comes to an idle fleet and is placed."""
    load = Load(engines, random.Random(SEED))
    load.join()
    times = []
    for _ in range(steps):
        load.now_ms += 7
        call = load.call()
        started, worked = time.perf_counter(), time.thread_time()
        load.fleet.ready(call)
        load.place()
        times.append(((time.perf_counter() - started) * 1e3, (time.thread_time() - worked) * 1e3))
        if len(load.running) > engines:
            load.end_one()
    return times


class Table:
    """The rows, and what they come to."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._rows: list[tuple[str, ...]] = []
        self.means: dict[tuple[int, int], float] = {}

    def add(self, engines: int, waiting: int, times: list[tuple[float, float]]) -> dict[str, float]:
        """A row; returns its figures."""
        of, worked = spread([wall for wall, _ in times]), spread([cpu for _, cpu in times])
        figures = {**of, "cpu_mean": statistics.mean(cpu for _, cpu in times), "cpu_p99": worked["p99"]}
        self.means[engines, waiting] = figures["cpu_mean"]
        self._report.samples.append({"engines": engines, "waiting": waiting, **figures})
        told = (f"{figures[name]:.3f}" for name in ("p50", "p99", "max", "cpu_mean", "cpu_p99"))
        title = f"{engines:,} engines, {waiting:,} waiting" if waiting else f"{engines:,} engines, idle"
        self._rows.append((title, *told))
        return figures

    def show(self) -> None:
        """Prints it."""
        print_table(["ms a step", "p50", "p99", "max", "processor mean", "p99"], self._rows)


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    gc.set_threshold(*COLLECT)
    steps = 500 if arguments.quick else 5_000
    report = Report("manager-decision", {"steps": steps, "places": PLACES, "tenants": TENANTS, "seed": SEED})
    table = Table(report)
    for engines in ENGINES:
        load = Load(engines, random.Random(SEED))
        load.join()
        load.fill()
        queued = 0
        for waiting in WAITING:
            load.queue(waiting - queued)
            load.place()
            queued = waiting
            of = table.add(engines, waiting, measured(load, steps))
            report.summary |= {"p50_ms": of["p50"], "p99_ms": of["p99"], "cpu_p99_ms": of["cpu_p99"]}
    report.summary["growth"] = table.means[ENGINES[-1], WAITING[-1]] / table.means[ENGINES[-1], WAITING[0]]
    for engines in ENGINES:
        report.summary["idle_p99_ms"] = table.add(engines, 0, idle(engines, steps))["p99"]
    table.show()
    report.show(arguments.json)


if __name__ == "__main__":
    main()
