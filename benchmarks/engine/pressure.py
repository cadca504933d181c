"""Streaming prefill where KV memory is scarce: what it does to the slowest applications.

The memory is first filled with shared contexts that nobody uses any more, to 95 %; then twelve pairs
at once want more than there is. A pair's time is from sending both programs to the consumer's end.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.rig import Client, bus, client, english, options, started
from benchmarks.harness import Report, parser, print_table, spread
from parrot_engine.backends.base import Backend
from parrot_engine.backends.vllm import VllmBackend
from parrot_engine.programs.tools import Features

PAIRS = 12
STATIC_TOKENS = 400
PRODUCER_TOKENS = 192
CONSUMER_TOKENS = 16
KV_TOKENS = 4096
IDLE_TOKENS = 96
FULL = 0.95
WITHIN_S = 300.0


@dataclass
class Pressure:
    """How full the memory was, looked at all along."""

    fractions: list[float]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.fractions)


@asynccontextmanager
async def watched(backend: Backend) -> AsyncIterator[Pressure]:
    """Looks at the memory until the block ends."""
    found = Pressure([])

    async def look() -> None:
        while True:
            stats = backend.stats()
            used = 1 - stats.free_tokens / max(1, backend.info.kv_tokens)
            found.fractions.append(used)
            await asyncio.sleep(0.1)  # between two looks

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def pair(sender: Client, place: int) -> float:
    """One pair; its seconds."""
    began = time.monotonic()
    variable_id = f"x{place}"
    consumer = sender.send(
        "consumer",
        sender.text(english(sender.backend, STATIC_TOKENS, place)),
        sender.variable(variable_id, expected_tokens=PRODUCER_TOKENS),
        sender.output(f"y{place}", CONSUMER_TOKENS),
    )
    producer = sender.send(
        "producer",
        sender.text(english(sender.backend, 128, 5000 + place)),
        sender.output(variable_id, PRODUCER_TOKENS),
    )
    await sender.end(producer)
    await sender.end(consumer)
    return time.monotonic() - began


async def fill_memory(sender: Client, place: int) -> None:
    """Fills the memory with shared contexts, new ones each time, until hardly any is free."""
    backend = sender.backend
    for number in range(place, place + KV_TOKENS // IDLE_TOKENS):
        if backend.stats().free_tokens < (1 - FULL) * backend.info.kv_tokens:
            return
        text = sender.text(english(backend, IDLE_TOKENS, 9000 + number))
        text.fill.shared.prefix_hash = f"idle-{number}"
        await sender.end(sender.send("idle", text, sender.text(" So"), sender.output(f"idle{number}", 1)))


async def batch(sender: Client, first: int) -> list[float | None]:
    """All pairs at once; None for one that did not finish."""
    tasks = [asyncio.create_task(pair(sender, first + number)) for number in range(PAIRS)]
    await asyncio.wait(tasks, timeout=WITHIN_S)
    times: list[float | None] = []
    for task in tasks:
        times.append(task.result() if task.done() else None)
        task.cancel()
    return times


async def measure(rounds: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/pressure", {"rounds": rounds, "pairs": PAIRS, "kv_tokens": KV_TOKENS})
    kv_bytes = KV_TOKENS * 30 * 2 * 3 * 64 * 2
    backend = VllmBackend(options(kv_cache_bytes=kv_bytes, context_window_tokens=2048, capacity=PAIRS))
    found: dict[str, list[float]] = {"on": [], "off": []}
    fullness: dict[str, list[float]] = {"on": [], "off": []}
    deadlocks = 0
    async with (
        bus() as made,
        started(backend),
        client(backend, made) as on,
        client(backend, made, Features(static_prefill=False, dynamic_prefill=False)) as off,
    ):
        for number in range(rounds):
            for switch, sender in (("on", on), ("off", off)):
                first = 100 * (2 * number + (switch == "on"))
                await fill_memory(sender, first)
                async with watched(backend) as pressure:
                    times = await batch(sender, first)
                deadlocks += times.count(None)
                found[switch] += [seconds for seconds in times if seconds is not None]
                fullness[switch].append(pressure.p50)
                report.samples += [{"switch": switch, "pair_s": seconds} for seconds in times]
    summarise(report, found, fullness)
    report.summary["deadlocks"] = deadlocks
    return report


def summarise(report: Report, found: dict[str, list[float]], fullness: dict[str, list[float]]) -> None:
    """The tails, and their ratio."""
    rows: list[tuple[Any, ...]] = []
    for switch, times in found.items():
        of = spread(times)
        report.summary[f"p99_s_{switch}"], report.summary[f"p50_s_{switch}"] = of["p99"], of["p50"]
        report.summary[f"kv_used_{switch}"] = statistics.median(fullness[switch])
        rows.append((f"prefill ahead {switch}", *(f"{of[key]:.2f}" for key in ("min", "p50", "p99", "max"))))
    print_table(["a pair's seconds", "min", "p50", "p99", "max"], rows)
    report.summary["p99_ratio"] = report.summary["p99_s_on"] / report.summary["p99_s_off"]


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=5, help="batches of each kind")
    arguments = made.parse_args()
    asyncio.run(measure(1 if arguments.quick else arguments.rounds)).show(arguments.json)


if __name__ == "__main__":
    main()
