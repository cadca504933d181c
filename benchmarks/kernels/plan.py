"""How long a decode step takes to be planned, from its block tables and from a tree that is known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness import Report, parser, print_table
from parrot_kernels.plan import Capacity, Planner, Shape

BLOCK_TOKENS = 16
PREFIX_TOKENS = 6_000
SUFFIX_TOKENS = 320
SHAPES = ((64, 1), (64, 8), (256, 1), (256, 16))
"""Rows, and the groups they are in."""


def batch(rows: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Block tables, lengths, and the tree: rows group by group, and what each shares with the one before."""
    source = np.random.default_rng(1)
    prefix, suffix = PREFIX_TOKENS // BLOCK_TOKENS, SUFFIX_TOKENS // BLOCK_TOKENS
    numbers = source.permutation(groups * prefix + rows * suffix).astype(np.int32)
    prefixes = numbers[: groups * prefix].reshape(groups, prefix)
    suffixes = numbers[groups * prefix :].reshape(rows, suffix)
    group = np.arange(rows) % groups
    tables = np.hstack([prefixes[group], suffixes])
    lengths = (PREFIX_TOKENS + source.integers(1, SUFFIX_TOKENS, rows)).astype(np.int32)
    order = np.argsort(group, kind="stable").astype(np.int32)
    shared = np.where(group[order] == np.roll(group[order], 1), prefix, 0).astype(np.int32)
    return tables, lengths, order, shared


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Microseconds of each time."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1e6)
    return found


def measure(times: int) -> Report:
    """The whole benchmark."""
    report = Report("kernels/plan", {"times": times, "prefix_tokens": PREFIX_TOKENS})
    table = []
    for rows, groups in SHAPES:
        tables, lengths, order, shared = batch(rows, groups)
        planner = Planner(Shape(BLOCK_TOKENS, 8, 4, 64, 132), Capacity.of(rows))
        ways = {
            "tables": partial(planner.plan, tables, lengths),
            "tree": partial(planner.plan_tree, tables, lengths, order, shared),
        }
        for way, work in ways.items():
            work()
            found = timed(work, times)
            ordered = sorted(found)
            p50, p99 = statistics.median(ordered), ordered[int(0.99 * len(ordered))]
            report.samples.append({"rows": rows, "groups": groups, "from": way, "us": p50, "us_p99": p99})
            table.append((f"{rows} rows, {groups} groups", way, f"{p50:.0f}", f"{p99:.0f}"))
    for rows in (64, 256):
        of = [
            sample["us"] for sample in report.samples if sample["rows"] == rows and sample["from"] == "tables"
        ]
        report.summary[f"us_{rows}"] = max(of)
    print_table(["batch", "from", "us p50", "us p99"], table)
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    measure(300 if arguments.quick else 3_000).show(arguments.json)


if __name__ == "__main__":
    main()
