"""Decode attention on the CPU: our kernel against vLLM's own op, over the same KV memory.

Layers take turns over more memory than the caches hold. vLLM writes the KV, in its own layout, and both
read it there. In each round all ways take turns, in an order of its own.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from benchmarks.harness import Report, parser, print_table
from parrot_kernels.cpu import CpuAttention, Layout, best_processor
from parrot_kernels.plan import CPU_COSTS, Capacity, Costs, Planner, Shape

THREADS = 2
BLOCK_TOKENS = 32
SUFFIX_TOKENS = 128
BYTES = 200 << 20
STEP_LAYERS = 16
"""At most so many share a step's plan, as in a model; a run over more layers is several steps."""
ALONE = Costs(row=0.0, item=1e12, partial=0.0)
"""With these nothing is shared: every row reads all of its KV."""
HEADS = ((9, 3, 64), (32, 8, 128))


@dataclass(frozen=True)
class Setting:
    """Query heads, KV heads, head size; rows; tokens of a prefix, and its groups (0: none); numbers' type."""

    heads: tuple[int, int, int]
    rows: int
    prefix: int
    groups: int
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        query, kv, size = self.heads
        shared = f"{self.groups} groups" if self.groups else "nothing shared"
        heads, dtype = f"{query}/{kv} x {size}", str(self.dtype).removeprefix("torch.")
        return f"{heads}, {dtype}, {self.rows} rows, {self.prefix} + {SUFFIX_TOKENS} tokens, {shared}"

    @property
    def kv_bytes(self) -> int:
        """Of one token in one layer."""
        _, kv, size = self.heads
        return 2 * kv * size * self.dtype.itemsize


class Batch:
    """The rows of a setting, over several layers' KV memory."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(1)
        query, kv, size = setting.heads
        self.setting, self.rows, self.scale = setting, setting.rows, size**-0.5
        prefix, suffix = setting.prefix // BLOCK_TOKENS, SUFFIX_TOKENS // BLOCK_TOKENS
        groups = setting.groups or self.rows
        blocks = groups * prefix + self.rows * suffix
        numbers = np.random.default_rng(1).permutation(blocks).astype(np.int32)
        prefixes = numbers[: groups * prefix].reshape(groups, prefix)
        own = numbers[groups * prefix :].reshape(self.rows, suffix)
        self.tables = np.hstack([prefixes[np.arange(self.rows) * groups // self.rows], own])
        self.lengths = np.full(self.rows, setting.prefix + SUFFIX_TOKENS, np.int32)
        self.isa = _get_attn_isa(setting.dtype, BLOCK_TOKENS, size)
        layers = max(2, math.ceil(BYTES / (blocks * BLOCK_TOKENS * setting.kv_bytes)))
        self.layers = [self._memory(blocks, kv, size) for _ in range(layers)]
        self.queries = [torch.randn(self.rows, query, size).to(setting.dtype) for _ in self.layers]
        self.out = torch.empty_like(self.queries[0])

    def _memory(self, blocks: int, kv: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.zeros(blocks, kv, 2 * BLOCK_TOKENS, size, dtype=self.setting.dtype)
        keys, values = memory.chunk(2, dim=2)
        tokens = blocks * BLOCK_TOKENS
        new = [torch.randn(tokens, kv, size).to(self.setting.dtype) for _ in range(2)]
        ops.cpu_attn_reshape_and_cache(*new, keys, values, torch.arange(tokens), self.isa)
        return keys, values

    def vllm(self) -> Callable[[int], None]:
        """vLLM's op on one layer; what it prepares for a step is not counted."""
        query, kv, size = self.setting.heads
        lengths = torch.from_numpy(self.lengths)
        starts = torch.arange(self.rows + 1, dtype=torch.int32)
        tables = torch.from_numpy(self.tables)
        metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=self.rows,
            num_heads=query,
            num_kv_heads=kv,
            head_dim=size,
            seq_lens=lengths,
            dtype=self.setting.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=-1,
            isa=self.isa,
            enable_kv_split=True,
        )

        def layer(number: int) -> None:
            keys, values = self.layers[number]
            ops.cpu_attention_with_kv_cache(
                query=self.queries[number],
                key_cache=keys,
                value_cache=values,
                output=self.out,
                query_start_loc=starts,
                seq_lens=lengths,
                scale=self.scale,
                causal=True,
                alibi_slopes=None,
                sliding_window=-1,
                block_table=tables,
                softcap=0,
                scheduler_metadata=metadata,
                s_aux=None,
            )

        return layer

    def ours(self, costs: Costs) -> Callable[[int], None]:
        """Our kernel on one layer; the plan, one for all layers of a step, is made in its first."""
        query, kv, _ = self.setting.heads
        group = query // kv
        shape = Shape(BLOCK_TOKENS, kv, group, tile_rows=max(group, 64), workers=THREADS)
        planner = Planner(shape, Capacity.of(self.rows), costs)
        layout = Layout.PAIRS if self.isa == "amx" else Layout.ROWS
        kernel = CpuAttention(block_tokens=BLOCK_TOKENS, layout=layout, scale=self.scale, threads=THREADS)
        plan = planner.plan(self.tables, self.lengths)

        def layer(number: int) -> None:
            nonlocal plan
            if number % STEP_LAYERS == 0:
                plan = planner.plan(self.tables, self.lengths)
            keys, values = self.layers[number]
            kernel.attend(self.queries[number], keys, values, plan, self.out)

        return layer


def measured(setting: Setting, rounds: int) -> dict[str, Any]:
    """One setting: ms a layer of each way, taking turns, and how far their outputs differ."""
    batch = Batch(setting)
    ways = {"vllm": batch.vllm(), "shared": batch.ours(CPU_COSTS), "alone": batch.ours(ALONE)}
    outputs = {}
    for way, layer in ways.items():
        layer(0)
        outputs[way] = batch.out.float().clone()
    times: dict[str, list[float]] = {way: [] for way in ways}
    source = random.Random(1)
    for _ in range(rounds):
        for way, layer in source.sample(list(ways.items()), len(ways)):
            began = time.perf_counter()
            for number in range(len(batch.layers)):
                layer(number)
            times[way].append((time.perf_counter() - began) * 1e3 / len(batch.layers))
    differs = max(float((outputs[way] - outputs["vllm"]).abs().max()) for way in ways)
    return {
        "setting": str(setting),
        "ms": {way: min(found) for way, found in times.items()},
        "differs": differs,
    }


def settings(quick: bool) -> list[Setting]:
    """What is measured."""
    rows, prefixes = ((16,), (1_984,)) if quick else ((16, 32), (1_984, 5_984))
    shared = [Setting(*each) for each in product(HEADS, rows, prefixes, (1, 4))]
    alone = [Setting(heads, 16, 1_984, 0) for heads in HEADS]
    wide = [Setting(heads, 16, 1_984, groups, torch.float32) for heads in HEADS for groups in (1, 0)]
    return shared + alone + wide


def measure(arguments: argparse.Namespace) -> Report:
    """The whole benchmark."""
    torch.set_num_threads(THREADS)
    report = Report("kernels/cpu", {"threads": THREADS, "kernel": best_processor().name})
    table = []
    for setting in settings(arguments.quick):
        found = measured(setting, 5 if arguments.quick else 9)
        ms = found["ms"]
        found["ratio"] = ms["vllm"] / ms["shared"]
        found["groups"], found["dtype"] = setting.groups, str(setting.dtype)
        report.samples.append(found)
        table.append(
            (
                found["setting"],
                *(f"{ms[way]:.2f}" for way in ms),
                f"{found['ratio']:.2f}",
                f"{found['differs']:.1e}",
            )
        )
    half = [sample for sample in report.samples if sample["dtype"] == "torch.bfloat16"]
    ratios = [sample["ratio"] for sample in half if sample["groups"]]
    report.summary |= {
        "ratio_min": min(ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_unshared": min(sample["ratio"] for sample in half if not sample["groups"]),
        "ratio_float32": min(sample["ratio"] for sample in report.samples if sample not in half),
    }
    print_table(["heads, batch", "vLLM ms", "shared ms", "alone ms", "vLLM / shared", "differ by"], table)
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    measure(arguments).show(arguments.json)


if __name__ == "__main__":
    main()
