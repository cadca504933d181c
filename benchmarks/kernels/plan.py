"""How long a decode step takes to be planned, from its block tables and from a tree that is known.

And what the tree costs the scheduler: in a step with the requests of the one before, and in one where a
request ends and another begins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle, product
from types import SimpleNamespace

import numpy as np
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.vllm.forest import DecodingForest
from parrot_kernels.plan import Capacity, Planner, Shape

BLOCKS_TOKENS = (16, 32)
"""32 are vLLM's least on CPUs."""
PREFIX_TOKENS = 6_000
SUFFIX_TOKENS = 320
SHAPES = ((16, 1), (64, 1), (64, 8), (256, 1), (256, 16))
"""Rows, and the groups they are in."""

Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Work = Callable[[], object]


def batch(block_tokens: int, rows: int, groups: int) -> Batch:
    """Block tables, lengths, and the tree: rows group by group, and what each shares with the one before."""
    source = np.random.default_rng(1)
    prefix, suffix = PREFIX_TOKENS // block_tokens, SUFFIX_TOKENS // block_tokens
    numbers = source.permutation(groups * prefix + rows * suffix).astype(np.int32)
    prefixes = numbers[: groups * prefix].reshape(groups, prefix)
    suffixes = numbers[groups * prefix :].reshape(rows, suffix)
    group = np.arange(rows) % groups
    tables = np.hstack([prefixes[group], suffixes])
    lengths = (prefix * block_tokens + source.integers(1, SUFFIX_TOKENS, rows)).astype(np.int32)
    order = np.argsort(group, kind="stable").astype(np.int32)
    shared = np.where(group[order] == np.roll(group[order], 1), prefix, 0).astype(np.int32)
    return tables, lengths, order, shared


def ways(block_tokens: int, made: Batch) -> Iterator[tuple[str, Work]]:
    """What is timed of a batch."""
    tables, lengths, order, shared = made
    planner = Planner(Shape(block_tokens, 8, 4, 64, 132), Capacity.of(len(tables)))
    yield "tables", partial(planner.plan, tables, lengths)
    yield "tree", partial(planner.plan_tree, tables, lengths, order, shared)
    owned = {
        f"parrot-{row}": [KVCacheBlock(number) for number in table.tolist()]
        for row, table in enumerate(tables)
    }
    steps = [SimpleNamespace(num_scheduled_tokens=dict.fromkeys(owned, 1)) for _ in range(2)]
    yield "scheduler, same requests", partial(_forest(owned).tell, steps[0])
    for step, name in zip(steps, owned, strict=False):
        del step.num_scheduled_tokens[name]
    forest, turns = _forest(owned), cycle(steps)
    yield "scheduler, one ends and one begins", lambda: forest.tell(next(turns))


def _forest(owned: Mapping[str, list[KVCacheBlock]]) -> DecodingForest:
    return DecodingForest(lambda name: KVCacheBlocks((owned[name],)).get_block_ids()[0])


def timed(work: Work, times: int) -> list[float]:
    """Microseconds of each time, the least first."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1e6)
    return sorted(found)


def figures(ordered: list[float]) -> Mapping[str, float]:
    """Median, 99th percentile and least, in microseconds."""
    p99 = ordered[int(0.99 * len(ordered))]
    return {"us": statistics.median(ordered), "us_p99": p99, "us_min": ordered[0]}


def measure(times: int) -> Report:
    """The whole benchmark."""
    report = Report("kernels/plan", {"times": times, "prefix_tokens": PREFIX_TOKENS})
    table = []
    for block_tokens, (rows, groups) in product(BLOCKS_TOKENS, SHAPES):
        for way, work in ways(block_tokens, batch(block_tokens, rows, groups)):
            work()
            found = figures(timed(work, times))
            of = {"block_tokens": block_tokens, "rows": rows, "groups": groups, "from": way}
            report.samples.append({**of, **found})
            table.append(
                (f"{rows} rows, {groups} groups", block_tokens, way, *map("{:.1f}".format, found.values()))
            )
    for rows in sorted({rows for rows, _ in SHAPES}):
        report.summary[f"us_{rows}"] = max(
            sample["us"] for sample in report.samples if (sample["rows"], sample["from"]) == (rows, "tables")
        )
    print_table(["batch", "block tokens", "from", "us p50", "us p99", "us min"], table)
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    measure(300 if arguments.quick else 3_000).show(arguments.json)


if __name__ == "__main__":
    main()
