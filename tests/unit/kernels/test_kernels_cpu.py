"""The CPU kernels against float64, for every processor this machine has, type and layout."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.forests import Forest, random_forest

from parrot_kernels.cpu import AttentionError, CpuAttention, Layout, Processor, best_processor
from parrot_kernels.plan import CPU_COSTS, Capacity, Costs, Planner, Shape
from parrot_kernels.reference import attention

BLOCK = 32
FREE = Costs(row=0.0, item=0.0, partial=0.0)
NEVER = Costs(row=0.0, item=1e9, partial=0.0)
"""Sharing never pays."""
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Outputs are sums of values within about -4 to 4, rounded to the type: half a unit in the last place of the
largest, and for bfloat16 the rounding of the weights."""
MINE = [processor for processor in Processor if processor <= best_processor()]


def laid_out(plain: torch.Tensor, layout: Layout, *, keys: bool) -> torch.Tensor:
    """Blocks x heads x tokens x dims as a layout has them."""
    blocks, heads, tokens, size = plain.shape
    if layout is Layout.ROWS:
        made = plain.transpose(2, 3) if keys else plain
    elif keys:
        made = plain.reshape(blocks, heads, tokens // 16, 16, size // 2, 2).permute(0, 1, 2, 4, 3, 5)
    else:
        made = plain.reshape(blocks, heads, tokens // 2, 2, size // 16, 16).permute(0, 1, 4, 2, 5, 3)
    return made.contiguous().reshape(blocks, heads, -1)


def packed(forest: Forest) -> Forest:
    """The same forest in no more memory than it needs."""
    owned, numbers = np.unique(forest.tables, return_inverse=True)
    tables = numbers.reshape(forest.tables.shape).astype(np.int32)
    return replace(forest, tables=tables, blocks=len(owned))


class Case:
    """A batch over a KV memory of which all that is nobody's is no number."""

    def __init__(
        self, forest: Forest, dtype: torch.dtype, layout: Layout, *, kv_heads: int, group: int, size: int
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        forest = packed(forest)
        self.forest, self.layout, self.dtype = forest, layout, dtype
        self.rows = len(forest.lengths)
        heads = kv_heads * group
        block, blocks = forest.block_tokens, 1 + int(forest.tables.max())
        self.q = torch.randn(self.rows, heads, size, generator=generator).to(dtype)
        self.keys, self.values = (
            torch.randn(blocks, kv_heads, block, size, generator=generator).to(dtype) for _ in range(2)
        )
        self.scale = size**-0.5
        self.shape = Shape(block, kv_heads, group, tile_rows=max(group, 32), workers=2)
        used = torch.zeros(blocks, block, dtype=torch.bool)
        for table, length in zip(forest.tables.tolist(), forest.lengths.tolist(), strict=True):
            for at in range(length):
                used[table[at // block], at % block] = True
        poison = ~used[:, None, :, None]
        nan = float("nan")
        self.lay_out(self.keys.masked_fill(poison, nan), self.values.masked_fill(poison, nan))

    def lay_out(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Makes these the KV memory."""
        self.memory = laid_out(keys, self.layout, keys=True), laid_out(values, self.layout, keys=False)

    def run(
        self, processor: Processor, costs: Costs = CPU_COSTS, threads: int = 2, **shape: Any
    ) -> torch.Tensor:
        """What comes out; rows without tokens are left as they were."""
        made = Shape(**{name: shape.get(name, getattr(self.shape, name)) for name in Shape.__slots__})
        planner = Planner(made, Capacity.of(self.rows), costs)
        plan = planner.plan(self.forest.tables, self.forest.lengths)
        out = torch.full_like(self.q, float("nan"))
        kernel = CpuAttention(
            block_tokens=self.forest.block_tokens,
            layout=self.layout,
            scale=self.scale,
            threads=threads,
            processor=processor,
        )
        kernel.attend(self.q, *self.memory, plan, out)
        return out

    def expected(self) -> torch.Tensor:
        """In float64."""
        keys, values = (each.float().transpose(1, 2).numpy() for each in (self.keys, self.values))
        tables, lengths = self.forest.tables.tolist(), self.forest.lengths.tolist()
        found = attention(self.q.float().numpy(), (keys, values), tables, lengths, self.scale)
        return torch.from_numpy(found)

    @property
    def busy(self) -> list[int]:
        """Rows with tokens."""
        return [row for row, length in enumerate(self.forest.lengths.tolist()) if length]


def check(case: Case, out: torch.Tensor) -> None:
    rows = case.busy
    assert torch.isfinite(out[rows].float()).all()
    assert (out[rows].double() - case.expected()[rows]).abs().max() < BOUNDS[case.dtype]
    rest = [row for row in range(case.rows) if row not in rows]
    assert torch.isnan(out[rest].float()).all()


@pytest.mark.parametrize("processor", MINE, ids=lambda found: found.name.lower())
@pytest.mark.parametrize("layout", Layout, ids=lambda found: found.name.lower())
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_every_kernel_makes_what_float64_does(
    processor: Processor, layout: Layout, dtype: torch.dtype, seed: int
) -> None:
    source = random.Random(seed)
    forest = random_forest(source, source.randint(1, 12), source.choice((32, 64, 96)))
    group = source.choice((1, 2, 3, 4, 7, 8))
    case = Case(
        forest, dtype, layout, kv_heads=source.choice((1, 3)), group=group, size=source.choice((32, 64, 128))
    )
    for costs in (CPU_COSTS, FREE, NEVER):
        check(case, case.run(processor, costs))


@pytest.mark.parametrize("layout", Layout, ids=lambda found: found.name.lower())
def test_neither_sharing_nor_the_cut_of_the_work_changes_what_comes_out(layout: Layout) -> None:
    case = Case(
        random_forest(random.Random(3), 24, BLOCK), torch.float32, layout, kv_heads=2, group=3, size=64
    )
    base = case.run(MINE[-1])
    for costs in (FREE, NEVER):
        for workers in (1, 64):
            for tile_rows in (3, 12, 96):
                out = case.run(MINE[-1], costs, workers=workers, tile_rows=tile_rows)
                assert (out[case.busy] - base[case.busy]).abs().max() < BOUNDS[torch.float32]


def test_neither_the_order_of_rows_nor_where_blocks_lie_matters() -> None:
    forest = random_forest(random.Random(5), 16, BLOCK)
    case = Case(forest, torch.float32, Layout.ROWS, kv_heads=1, group=2, size=32)
    base = case.run(MINE[-1])
    other, order = forest.shuffled(random.Random(6))
    moved = Case(other, torch.float32, Layout.ROWS, kv_heads=1, group=2, size=32)
    moved.q, moved.memory = case.q[order], case.memory
    out = moved.run(MINE[-1])
    busy = moved.busy
    assert torch.equal(out[busy], base[order][busy])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_makes_the_same(threads: int) -> None:
    case = Case(
        random_forest(random.Random(8), 20, BLOCK), torch.bfloat16, Layout.PAIRS, kv_heads=3, group=3, size=64
    )
    check(case, case.run(MINE[-1], threads=threads))


def test_one_kernel_takes_one_layer_after_another_of_different_sizes() -> None:
    forest = random_forest(random.Random(3), 24, BLOCK)
    cases = [
        Case(forest, torch.float32, Layout.ROWS, kv_heads=2, group=1, size=size) for size in (32, 128, 64)
    ]
    kernel = CpuAttention(block_tokens=BLOCK, layout=Layout.ROWS, scale=0.1, threads=2)
    for case in cases:
        case.scale = 0.1
        plan = Planner(case.shape, Capacity.of(case.rows), FREE).plan(case.forest.tables, case.forest.lengths)
        assert plan.partials
        out = torch.full_like(case.q, float("nan"))
        kernel.attend(case.q, *case.memory, plan, out)
        check(case, out)


def test_large_scores_do_not_overflow() -> None:
    case = Case(
        random_forest(random.Random(1), 6, BLOCK), torch.float32, Layout.ROWS, kv_heads=1, group=1, size=32
    )
    case.q *= 1e3
    out = case.run(MINE[-1])
    assert torch.isfinite(out[case.busy]).all()
    assert (out[case.busy].double() - case.expected()[case.busy]).abs().max() < 1e-3


def one_prefix(rows: int, blocks: int, last_tokens: int) -> Forest:
    """Rows that have all their blocks in common but the last."""
    shared = np.arange(1, blocks + 1, dtype=np.int32)
    own = np.arange(blocks + 1, blocks + 1 + rows, dtype=np.int32)
    tables = np.hstack([np.tile(shared, (rows, 1)), own[:, None]])
    lengths = np.full(rows, blocks * BLOCK + last_tokens, np.int32)
    return Forest(tables, lengths, BLOCK, blocks + 1 + rows)


@pytest.mark.parametrize("processor", MINE, ids=lambda found: found.name.lower())
def test_any_number_of_rows_is_a_tile(processor: Processor) -> None:
    for rows in (1, 2, 3, 7, 12, 13, 16, 17, 31, 33, 47, 48, 65):
        case = Case(one_prefix(rows, 2, 5), torch.bfloat16, Layout.PAIRS, kv_heads=1, group=1, size=64)
        check(case, case.run(processor, FREE, tile_rows=rows))


@pytest.mark.parametrize("processor", MINE, ids=lambda found: found.name.lower())
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [(torch.bfloat16, Layout.PAIRS), (torch.bfloat16, Layout.ROWS), (torch.float32, Layout.ROWS)],
)
@pytest.mark.parametrize("slope", [-0.06, -0.02, 0.02, 0.06], ids=str)
def test_scores_may_rise_and_fall_by_any_amount(
    processor: Processor, dtype: torch.dtype, layout: Layout, slope: float
) -> None:
    case = Case(one_prefix(2, 12, 9), dtype, layout, kv_heads=1, group=2, size=32)
    blocks = len(case.keys)
    case.q.fill_(0)[..., 0] = 1 / case.scale
    heights = slope * torch.arange(blocks * BLOCK).reshape(blocks, 1, BLOCK)
    case.keys[..., 0] = heights.to(dtype)
    case.lay_out(case.keys, case.values)
    for costs in (FREE, NEVER):  # in several pieces, and in one
        check(case, case.run(processor, costs))


@pytest.mark.parametrize("processor", MINE, ids=lambda found: found.name.lower())
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("place", ["keys", "values"])
def test_what_is_no_number_is_seen_in_the_rows_that_read_it_and_in_no_other(
    processor: Processor, dtype: torch.dtype, place: str
) -> None:
    for layout in Layout:
        case = Case(one_prefix(3, 4, 20), dtype, layout, kv_heads=2, group=2, size=32)
        expected = case.run(processor, FREE)
        block = int(case.forest.tables[1, -1])
        wrong = getattr(case, place).clone()
        wrong[block, 0, 3] = float("nan")
        plain = {"keys": case.keys, "values": case.values, place: wrong}
        case.lay_out(**plain)
        out = case.run(processor, FREE)
        assert torch.isnan(out[1, :2].float()).all()
        assert torch.equal(out[1, 2:], expected[1, 2:])
        assert torch.equal(out[[0, 2]], expected[[0, 2]])


def test_a_plan_serves_tensors_laid_out_in_any_way_and_refuses_those_that_do_not_fit() -> None:
    case = Case(
        random_forest(random.Random(4), 12, BLOCK), torch.float32, Layout.ROWS, kv_heads=2, group=2, size=32
    )
    plan = Planner(case.shape, Capacity.of(case.rows)).plan(case.forest.tables, case.forest.lengths)
    kernel = CpuAttention(block_tokens=BLOCK, layout=Layout.ROWS, scale=case.scale, threads=2)
    keys, values = case.memory
    apart = torch.zeros(case.rows, 4, 3, 32)[:, :, 1]
    apart.copy_(case.q)
    for q in (case.q, apart, case.q):
        for out in (
            torch.full_like(case.q, float("nan")),
            torch.full((case.rows, 4, 3, 32), float("nan"))[:, :, 1],
        ):
            kernel.attend(q, keys, values, plan, out)
            check(case, out)
        with pytest.raises(AttentionError, match="laid out alike"):
            kernel.attend(q, keys[..., :-1], values, plan, torch.empty_like(case.q))
        with pytest.raises(AttentionError, match="no gaps"):
            kernel.attend(q, keys, values, plan, torch.empty(case.rows, 4, 64)[..., ::2])


def test_what_does_not_fit_together_is_refused() -> None:
    case = Case(
        random_forest(random.Random(1), 4, BLOCK), torch.float32, Layout.ROWS, kv_heads=2, group=2, size=32
    )
    plan = Planner(case.shape, Capacity.of(4)).plan(case.forest.tables, case.forest.lengths)
    kernel = CpuAttention(block_tokens=BLOCK, layout=Layout.ROWS, scale=1.0, threads=1)
    q, (keys, values) = case.q, case.memory
    for wrong, why in (
        ((q.double(), keys, values), "one type"),
        ((q, keys.half(), values), "one type"),
        ((q[:, :3], keys, values), "KV heads"),
        ((q[:2], keys, values), "rows"),
        ((q, keys[..., :-1], values), "laid out alike"),
        ((q, keys, values[:-1]), "laid out alike"),
        ((q, keys, values[:, :1]), "laid out alike"),
    ):
        with pytest.raises(AttentionError, match=why):
            kernel.attend(*wrong, plan, torch.empty_like(wrong[0]))
    with pytest.raises(AttentionError, match="multiples of 32"):
        CpuAttention(block_tokens=16, layout=Layout.ROWS, scale=1.0, threads=1)
