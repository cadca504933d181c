"""What a GPU makes of random forests, against float64; and a graph that is replayed over other plans."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.kernels.gpu_batch import Ints
from benchmarks.kernels.gpu_timing import captured
from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Planner
from parrot_kernels.reference import attention
from parrot_kernels.xformers_check import XformersError, XformersForest

BOUNDS = {"float16": 4e-3, "bfloat16": 3e-2}
"""Outputs are sums of values within about -4 to 4, rounded to the type, as the weights are."""
SCALES = (0.7, 1.3)
"""Of keys and of values, in eight bits."""
BLOCKS = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one check: the largest difference from float64, what it may be, and why there is none."""

    name: str
    error: float
    bound: float
    skipped: str = ""

    @property
    def failed(self) -> bool:
        """Also where what came out is no number."""
        return not self.skipped and not self.error < self.bound


class Case:
    """A forest of rows over a KV memory of which all that is nobody's is no number."""

    def __init__(self, seed: int, rows: int, made: Geometry, device: torch.device) -> None:
        source = random.Random(seed)
        self.made, self.device, self.rows = made, device, rows
        self.scales = SCALES if "float8" in made.kv_type else (1.0, 1.0)
        self.scale = made.head_size**-0.5
        self.tables, self.lengths = _forest(source, rows, made.block_tokens)
        generator = torch.Generator().manual_seed(seed)
        kind, kv = (getattr(torch, name) for name in (made.query_type, made.kv_type))
        shape = (BLOCKS, made.block_tokens, made.kv_heads, 2 * made.head_size)
        self.memory = torch.randn(shape, generator=generator).to(kv)
        nobodys = torch.from_numpy(~_used(self.tables, self.lengths, made.block_tokens))
        poisoned = self.memory.float().masked_fill(nobodys[:, :, None, None], torch.nan).to(kv).to(device)
        self.key, self.value = poisoned.chunk(2, dim=-1)
        self.query = torch.randn(rows, made.query_heads, made.head_size, generator=generator).to(kind)

    def expected(self) -> torch.Tensor:
        """Rows x query heads x dims; zeros for rows of no tokens."""
        key, value = self.memory.float().chunk(2, dim=-1)
        memory = (key.numpy() * self.scales[0], value.numpy() * self.scales[1])
        found = attention(
            self.query.float().numpy(), memory, self.tables.tolist(), self.lengths.tolist(), self.scale
        )
        return torch.from_numpy(found)

    def error(self, out: torch.Tensor) -> float:
        """The largest difference, of rows that have tokens; no number where another row was written."""
        busy = torch.from_numpy(self.lengths > 0)
        if not torch.isnan(out[~busy]).all():
            return float("nan")
        return float((out[busy].double() - self.expected()[busy]).abs().max())


def _forest(source: random.Random, rows: int, block: int) -> tuple[Ints, Ints]:
    """Rows that begin with one of several nested prefixes, and end anywhere; one has nothing of its own."""
    numbers = iter(source.sample(range(1, BLOCKS), BLOCKS - 1))
    prefixes: list[list[int]] = [[]]
    for _ in range(5):
        prefixes.append([*source.choice(prefixes), *(next(numbers) for _ in range(source.randint(1, 12)))])
    chosen = [source.choice(prefixes) for _ in range(rows)]
    own = [source.choice((0, 1, 2, 5)) for _ in range(rows)]
    tables = np.zeros((rows, max(map(len, prefixes)) + 5), np.int32)
    lengths = np.zeros(rows, np.int32)
    for row, (prefix, more) in enumerate(zip(chosen, own, strict=True)):
        table = [*prefix, *(next(numbers) for _ in range(more))]
        tables[row, : len(table)] = table
        lengths[row] = len(prefix) * block + (source.randint(1, more * block) if more else 0)
    return tables, lengths


def _used(tables: Ints, lengths: Ints, block: int) -> np.ndarray:
    used = np.zeros((BLOCKS, block), bool)
    for table, length in zip(tables, lengths.tolist(), strict=True):
        at = np.arange(length)
        used[table[at // block], at % block] = True
    return used


class _Runner:
    """Our kernel over cases of one geometry, whose rows are those of the largest."""

    def __init__(self, case: Case) -> None:
        made = case.made
        self._kernel = GpuAttention(made, case.device)
        capacity = made.capacity(case.rows)
        self._planner = Planner(made.shape(self._kernel.programs), capacity, made.costs())
        self._lists = DeviceLists(made, capacity, case.device)
        self.query = torch.full_like(case.query, torch.nan, device=case.device)
        self.out = torch.empty_like(self.query)
        self.tables = torch.zeros(case.tables.shape, dtype=torch.int32, device=case.device)
        self.key, self.value = case.key.clone(), case.value.clone()
        self._scale, self._scales = case.scale, case.scales

    def load(self, case: Case) -> None:
        """Puts a case where the kernel finds it."""
        tables = np.zeros(tuple(self.tables.shape), np.int32)
        width = min(tables.shape[1], case.tables.shape[1])
        tables[: case.rows, :width] = case.tables[:, :width]
        self._lists.load(self._planner.plan(tables[: case.rows], case.lengths))
        self.tables.copy_(torch.from_numpy(tables))
        self.query[: case.rows] = case.query.to(case.device)
        self.key.copy_(case.key)
        self.value.copy_(case.value)
        self.out.fill_(torch.nan)

    def run(self) -> None:
        self._kernel.run(
            self._lists,
            self.query,
            self.key,
            self.value,
            self.tables,
            self.out,
            scale=self._scale,
            k_scale=self._scales[0],
            v_scale=self._scales[1],
        )


def _geometries(quick: bool) -> Iterator[Geometry]:
    for kind in ("bfloat16",) if quick else BOUNDS:
        for kv in (kind, "float8_e4m3fn"):
            for size, group, block in ((128, 1, 64), (128, 4, 64), (64, 3, 64), (128, 8, 16)):
                yield Geometry(2 * group, 2, size, block, kind, kv)


def checks(device: torch.device, quick: bool) -> Iterator[Outcome]:
    """All of them, one after another; or those of one type of queries."""
    for number, made in enumerate(_geometries(quick)):
        yield from _numerics(number, made, device)
    yield from _replays(device)
    yield _against_xformers(device)


def _numerics(seed: int, made: Geometry, device: torch.device) -> Iterator[Outcome]:
    case = Case(seed, 24, made, device)
    runner = _Runner(case)
    runner.load(case)
    runner.run()
    kind = f"{made.query_type}, KV {made.kv_type}"
    name = f"{kind}, {made.group} x {made.head_size}, blocks of {made.block_tokens}"
    yield Outcome(name, case.error(runner.out.cpu()), BOUNDS[made.query_type])


def _replays(device: torch.device) -> Iterator[Outcome]:
    """One graph over plans of fewer rows, other tables and other memory than it was captured with."""
    made = Geometry(32, 8, 128, 64, "bfloat16", "bfloat16")
    whole = Case(100, 48, made, device)
    runner = _Runner(whole)
    runner.load(whole)
    graph = captured(runner.run)
    for seed, rows in ((100, 48), (101, 7), (102, 31), (103, 1)):
        case = Case(seed, rows, made, device)
        runner.load(case)
        graph.replay()
        out = runner.out.cpu()
        untouched = bool(torch.isnan(out[rows:]).all())
        error = case.error(out[:rows]) if untouched else float("nan")
        yield Outcome(f"a graph of 48 rows replayed over {rows}", error, BOUNDS[made.query_type])


def _against_xformers(device: torch.device) -> Outcome:
    """xFormers over the same memory, in which nothing is poisoned: it may load what it does not use."""
    made = Geometry(32, 8, 128, 64, "bfloat16", "bfloat16")
    case = Case(7, 24, made, device)
    name, bound = "xFormers", 2 * BOUNDS[made.query_type]
    ours = _Runner(case)
    ours.load(case)
    ours.run()
    key, value = case.memory.to(device).chunk(2, dim=-1)
    out = torch.full_like(ours.query, torch.nan)
    try:
        forest = XformersForest(case.tables, case.lengths, made.block_tokens, device)
    except XformersError as error:
        return Outcome(name, 0.0, bound, skipped=str(error))
    forest.attend(ours.query, key, value, out, case.scale)
    busy = torch.from_numpy(case.lengths > 0).to(device)
    return Outcome(name, float((out[busy].float() - ours.out[busy].float()).abs().max()), bound)
