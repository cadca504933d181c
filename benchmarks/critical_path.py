"""Critical paths: whether they add up, find a known delay in its stage, and foretell a run without it.

A real manager, engine and bus in one process; the store, the network between them and the backend are doubles
that can be made slower (`tests/support/timed.py`). Three measurements:

- **sums**: sessions of random graphs. How far the whole, which the path sums to, lies from the time that its
  client measured around it; of how many sessions no more than 1 % of it is unexplained. That the path sums
  to the whole is so by construction, and only checked.
- **delays**: a chain with 5, 50 or 200 ms added at one stage, each run between two without it. What its stage
  grew by, as a share of what was added in all, in the median; of commits, of which some are waited for and
  some are not, as a share of what the whole grew by.
- **what if**: a chain whose every stage takes a while. How far "if the stage were free" lies from the whole
  of runs in which it is, in the median.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from dataclasses import asdict, replace
from random import Random
from typing import Any, Final

from tests.support.nats import temporary_nats
from tests.support.timed import Delays, TimedSystem, chain, function, timed_system

from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.sim import SimOptions
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.critical_path import Analysis, Stage, analyse

FAST: Final = SimOptions(step_ms=1.0, prefill_tokens_per_s=200_000)
CHAIN: Final = 3
STAGES: Final = {
    "network": Stage.NETWORK,
    "admission": Stage.ADMISSION,
    "queue": Stage.QUEUE,
    "prefill": Stage.STATIC_PREFILL,
    "decode": Stage.DECODE,
    "transforms": Stage.TRANSFORMS,
    "commit": Stage.COMMIT,
}
TIMES: Final = {"network": 4 * CHAIN, "admission": 2, "client": 1}
"""How often a chain in two batches comes by a stage, where not once a call."""
DELAYS_MS: Final = (5.0, 50.0, 200.0)
USUAL_MS: Final = 20.0
NEAR: Final = 0.01


def main() -> None:
    """Runs all three."""
    asked = parser(__doc__)
    asked.add_argument("--pairs", type=int, default=0, help="runs with a delay, each between two without")
    asked.add_argument("--sessions", type=int, default=0, help="random graphs")
    arguments = asked.parse_args()
    pairs = arguments.pairs or (2 if arguments.quick else 15)
    sessions = arguments.sessions or (40 if arguments.quick else 300)
    report = Report(
        "critical_path", {"pairs": pairs, "sessions": sessions, "chain": CHAIN, "usual_ms": USUAL_MS}
    )
    with temporary_nats() as nats:
        asyncio.run(measure(nats.url, report, pairs, sessions))
    report.show(arguments.json)


async def measure(nats_url: str, report: Report, pairs: int, sessions: int) -> None:
    """All three, one after another, on one system."""
    delays = Delays()
    async with timed_system(nats_url, delays, FAST) as system:
        await system.traced(chain(CHAIN))
        await sums(system, report, sessions)
        await found_delays(system, report, pairs)
        await foretold(system, report, pairs)


async def sums(system: TimedSystem, report: Report, sessions: int) -> None:
    """Whether paths add up."""
    random, summed, explained, off = Random(8), 0, 0, list[float]()
    for _ in range(sessions):
        calls = graph(random)
        began_s = time.perf_counter()
        session = await system.run(calls)
        client_ms = (time.perf_counter() - began_s) * 1e3
        found = analyse(await system.times(session), 0.0)
        summed += math.isclose(math.fsum(found.stages.values()), found.total_ms, rel_tol=NEAR)
        explained += found.stages.get(Stage.UNEXPLAINED, 0.0) <= NEAR * found.total_ms
        off.append(abs(found.total_ms - client_ms) / client_ms)
        report.samples.append({"calls": len(calls), "client_ms": client_ms, **told(found)})
    report.summary["path_is_whole"] = summed / sessions
    report.summary["explained_within_1_percent"] = explained / sessions
    report.summary["off_clients_time_p50"] = statistics.median(off)
    report.summary["off_clients_time_p95"] = statistics.quantiles(off, n=20)[-1]
    report.summary["within_1_percent_of_clients_time"] = sum(one <= NEAR for one in off) / sessions


async def found_delays(system: TimedSystem, report: Report, pairs: int) -> None:
    """Whether a delay is found in its stage."""
    rows = []
    for name, stage in [*STAGES.items(), ("client", Stage.CLIENT)]:
        for delay_ms in DELAYS_MS:
            grown = [await grown_by(system, name, stage, delay_ms, report) for _ in range(pairs)]
            whole_ms, stage_ms = (statistics.median(one) for one in zip(*grown, strict=True))
            added_ms = TIMES.get(name, 2 * CHAIN) * delay_ms if name != "commit" else whole_ms
            share = stage_ms / added_ms if added_ms > 0 else 0.0
            report.summary[f"attributed_{name}_{delay_ms:g}_ms"] = share
            rows.append(
                (
                    name,
                    f"{delay_ms:g}",
                    f"{added_ms:.1f}",
                    f"{whole_ms:.1f}",
                    f"{stage_ms:.1f}",
                    f"{share:.3f}",
                )
            )
    print_table(["delay at", "ms each", "added", "whole grew", "its stage grew", "share"], rows)


async def grown_by(
    system: TimedSystem, name: str, stage: Stage, delay_ms: float, report: Report
) -> tuple[float, float]:
    """By how much the whole grew with a delay, and by how much its stage did."""
    found = []
    for added_ms in (0.0, delay_ms, 0.0):
        changed = asdict(Delays()) | ({name: added_ms} if name != "client" else {})
        pause_ms = added_ms if name == "client" else 0.0
        found.append(await traced(system, Delays(**changed), pause_ms))
        report.samples.append({"delay": name, "added_ms": added_ms, **told(found[-1])})
    before, with_it, after = found

    def grown(value: Any) -> float:
        return float(value(with_it) - (value(before) + value(after)) / 2)

    return grown(lambda one: one.total_ms), grown(lambda one: one.stages.get(stage, 0.0))


async def foretold(system: TimedSystem, report: Report, pairs: int) -> None:
    """Whether what-ifs come true."""
    usual = Delays(**dict.fromkeys(STAGES, USUAL_MS))
    rows = []
    for name, stage in STAGES.items():
        said, then = [], []
        for _ in range(pairs):
            found = await traced(system, usual)
            said += [one.total_ms for one in found.what_ifs if one.stage is stage]
            again = await traced(system, replace(usual, **{name: 0.0}))
            then.append(again.total_ms)
            report.samples.append({"without": name, "said_ms": said[-1:], "then": told(again), **told(found)})
        error = statistics.median(said) / statistics.median(then) - 1
        report.summary[f"what_if_{name}_error"] = error
        rows.append(
            (name, f"{statistics.median(said):.1f}", f"{statistics.median(then):.1f}", f"{error:+.3f}")
        )
    print_table(["without", "foretold ms", "then ms", "error"], rows)


async def traced(system: TimedSystem, delays: Delays, pause_ms: float = 0.0) -> Analysis:
    """The path of a chain in two batches, with delays."""
    vars(system.delays).update(vars(delays))
    try:
        return await system.traced(chain(CHAIN), chain(CHAIN, start=CHAIN), pause_ms=pause_ms)
    finally:
        vars(system.delays).update(vars(Delays()))


def graph(random: Random) -> list[pb.NewCall]:
    """Calls, each of which reads some of those before."""
    calls: list[pb.NewCall] = []
    for number in range(random.randint(1, 10)):
        reads = random.sample(range(number), min(number, random.randint(0, 3)))
        names = [f"v{read}" for read in sorted(reads)]
        calls.append(function(f"f{number}", names, f"v{number}", tokens=random.randint(1, 60)))
    return calls


def told(found: Analysis) -> dict[str, Any]:
    """A path as a sample."""
    return {"total_ms": found.total_ms, "stages": {str(stage): ms for stage, ms in found.stages.items()}}


if __name__ == "__main__":
    main()
