"""What the scheduler is worth: applications finished in time per second, by policy, on simulated fleets.

The real machine (graph, objectives, scheduler) drives simulated engines through the paper's mixed workload
and through recorded traces. In time is three times the ideal (and half a second) where somebody waits, ten
times or a minute where nobody does; the ideal is an application's longest chain of calls, alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from benchmarks.harness import Report, parser, print_table
from benchmarks.manager.apps import TRACES, App, Mix, azure, sessions
from benchmarks.manager.fleet_run import Outcome, Run
from parrot_manager.core.scheduling import APP_CENTRIC, POLICIES, SchedulingPolicy

SWITCHES = ("grouping", "prefix_affinity", "objectives", "streaming_edges", "app_order")
VARIANTS: dict[str, SchedulingPolicy] = POLICIES | {
    f"without_{switch}": replace(APP_CENTRIC, name=f"without_{switch}", **{switch: False})  # type: ignore[arg-type]
    for switch in SWITCHES
}
Workload = Callable[[int, int], Iterator[App]]


def workloads() -> dict[str, Workload]:
    """By name: applications for a fleet of so many engines, with a seed."""
    found: dict[str, Workload] = {
        "mixed": lambda engines, seed: Mix(seed, 12.0 * engines)(),
        "mixed_busy": lambda engines, seed: Mix(seed, 18.0 * engines)(),
        "mixed_crowded": lambda engines, seed: Mix(seed, 24.0 * engines)(),
    }
    if TRACES.is_dir():
        found |= {
            "azure_conv": lambda engines, seed: azure("conv", 60.0 * engines, seed),
            "agents": lambda engines, seed: sessions(2.0 * engines, seed),
        }
    else:
        print(f"no traces: {TRACES} is not there")
    return found


LARGE = ("mixed_busy",)
"""What fleets of many engines are given; and by the named policies only."""


def play(
    policy: SchedulingPolicy, apps: Iterator[App], engines: int, minutes: float
) -> tuple[dict[str, float], list[Outcome]]:
    """One run, in numbers."""
    run = Run(policy, engines)
    until_ms = minutes * 60_000
    outcomes = run.play(apps, until_ms, 2 * until_ms)
    seconds = until_ms / 1000
    waited = sorted(one.stretch for one in outcomes)
    return {
        "apps": len(outcomes),
        "in_time": sum(one.in_time for one in outcomes) / len(outcomes),
        "goodput": sum(one.in_time for one in outcomes) / seconds,
        "stretch_p50": statistics.median(waited),
        "stretch_p99": waited[int(0.99 * len(waited))],
        "prefilled": run.prefilled,
    }, outcomes


def main() -> None:
    """Measures and reports."""
    flags = parser(__doc__)
    flags.add_argument("--engines", type=int, nargs="*", help="instead of 4 and 64")
    flags.add_argument("--seeds", type=int, default=0, help="instead of 5")
    flags.add_argument("--workloads", nargs="*")
    flags.add_argument("--policies", nargs="*", help=", ".join(VARIANTS))
    flags.add_argument("--minutes", type=float, default=0.0)
    arguments = flags.parse_args()
    quick = arguments.quick
    fleets = arguments.engines or ([4] if quick else [4, 64])
    seeds = arguments.seeds or (2 if quick else 5)
    minutes = arguments.minutes or (1.0 if quick else 3.0)
    names = arguments.policies or list(POLICIES if quick else VARIANTS)
    found = {
        name: load
        for name, load in workloads().items()
        if name in (arguments.workloads or (("mixed_busy",) if quick else workloads()))
    }
    report = Report("manager-fleet", {"engines": fleets, "seeds": seeds, "minutes": minutes})
    started = time.monotonic()
    for engines, workload, name in product(fleets, found, names):
        large = engines > 16
        if large and not arguments.policies and (workload not in LARGE or name not in POLICIES):
            continue
        for seed in range(seeds):
            apps = found[workload](engines, seed)
            numbers, outcomes = play(VARIANTS[name], apps, engines, min(minutes, 1.0) if large else minutes)
            kinds = {kind: _in_time(outcomes, kind) for kind in sorted({one.kind for one in outcomes})}
            sample = {"workload": workload, "engines": engines, "policy": name, "seed": seed}
            report.samples.append({**sample, **numbers, "kinds": kinds})
    report.config["seconds"] = round(time.monotonic() - started)
    show(report, found, fleets, names)
    report.show(arguments.json)


def show(report: Report, found: dict[str, Workload], fleets: list[int], names: list[str]) -> None:
    """A table for each workload and fleet, and the ratios: over all, and by workload."""
    ratios: dict[str, list[float]] = {name: [] for name in names if name != APP_CENTRIC.name}
    for workload, engines in product(found, fleets):
        of = {
            name: [
                s
                for s in report.samples
                if (s["workload"], s["engines"], s["policy"]) == (workload, engines, name)
            ]
            for name in names
        }
        rows = []
        for name, samples in of.items():
            if not samples:
                continue
            goodput = [s["goodput"] for s in samples]
            rows.append((
                name, f"{statistics.mean(goodput):.3f}", f"{min(goodput):.3f}-{max(goodput):.3f}",
                f"{statistics.mean(s['in_time'] for s in samples):.1%}",
                f"{statistics.mean(s['stretch_p50'] for s in samples):.2f}",
                f"{statistics.mean(s['stretch_p99'] for s in samples):.1f}",
                f"{statistics.mean(s['prefilled'] for s in samples) / 1e6:.2f}",
            ))  # fmt: skip
            if name in ratios and APP_CENTRIC.name in of:
                for ours, theirs in zip(of[APP_CENTRIC.name], samples, strict=True):
                    ratios[name].append(ours["goodput"] / max(theirs["goodput"], 1e-9))
                key = f"goodput_ratio_{name}_{workload}_{engines}"
                report.summary[key] = statistics.geometric_mean(ratios[name][-len(samples) :])
        if not rows:
            continue
        print(f"\n{workload}, {engines} engines")
        print_table(["policy", "in time/s", "spread", "in time", "stretch p50", "p99", "prefilled M"], rows)
    for name, each in ratios.items():
        if each:
            report.summary[f"goodput_ratio_{name}"] = statistics.geometric_mean(each)
            report.summary[f"goodput_ratio_{name}_min"] = min(each)


def _in_time(outcomes: list[Outcome], kind: str) -> float:
    of = [one for one in outcomes if one.kind == kind]
    return sum(one.in_time for one in of) / len(of)


if __name__ == "__main__":
    main()
