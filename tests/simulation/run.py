"""`python -m tests.simulation.run`: plays many seeds, or one of them with its history."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.violations import Violation
from tests.simulation.world import World

CHUNK = 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed went: what it broke; empty: nothing."""

    seed: int
    broke: str


def play(seed: int) -> Outcome:
    """Plays one seed."""
    world = World(seed)
    try:
        world.run()
    except Violation as violation:
        return Outcome(seed, str(violation))
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding
        return Outcome(seed, f"crash: {error!r}")
    return Outcome(seed, "")


def play_all(seeds: list[int]) -> list[Outcome]:
    """Plays seeds one after another; returns those that broke something."""
    gc.disable()
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcomes.append(play(seed))
        if seed % CHUNK == 0:
            gc.collect()
    return [outcome for outcome in outcomes if outcome.broke]


def simulate(first: int, count: int, workers: int) -> list[Outcome]:
    """Plays `count` seeds on all processors."""
    chunks = [
        list(range(start, min(start + CHUNK, first + count))) for start in range(first, first + count, CHUNK)
    ]
    if workers == 1:
        return [outcome for chunk in chunks for outcome in play_all(chunk)]
    # A fork of a test run that has spoken gRPC takes its threads' locks along.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return [outcome for broken in pool.map(play_all, chunks) for outcome in broken]


def show(seed: int) -> int:
    """Plays one seed and prints its history."""
    world = World(seed, keep_record=True)
    try:
        world.run()
    finally:
        sys.stdout.write("\n".join(world.record.lines()) + "\n")
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with its history")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return show(options.seed)
    began = time.monotonic()
    broken = simulate(options.first, options.seeds, options.workers)
    for outcome in broken:
        sys.stdout.write(f"seed {outcome.seed}: {outcome.broke}\n")
    took_s = time.monotonic() - began
    sys.stdout.write(f"{options.seeds} seeds in {took_s:.1f} s, {len(broken)} broken\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
