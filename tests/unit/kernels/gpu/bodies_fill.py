"""Fills against float64: run by `test_interpreted`, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.support.forests import Forest, Ints
from tests.unit.kernels.gpu.cases import BOUNDS, DEVICE, EXACT, FREE, NEVER, TYPES, memory

from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.fill import FillPlanner
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Capacity, Costs
from parrot_kernels.reference import attention


def geometry(block_tokens: int = 16, kind: str = EXACT, group: int = 4) -> Geometry:
    return Geometry(group, 1, 64, block_tokens, kind, kind)


class Family:
    """Requests that continue nodes of a random tree, with new tokens of which each is a row."""

    def __init__(self, source: random.Random, made: Geometry, requests: int) -> None:
        self.made, block = made, made.block_tokens
        numbers = iter(range(1, 10_000))
        parents: list[list[int]] = [[]]
        for _ in range(3):
            new = [next(numbers) for _ in range(source.choice((1, 3, 6)))]
            parents.append([*source.choice(parents), *new])
        tables: list[list[int]] = []
        contexts, tokens = [], []
        for _ in range(requests):
            parent = source.choice(parents)
            # Of its own, a request may already have a part: a fill in several steps.
            before = source.choice((0, 0, 5, block + 1))
            count = source.choice((0, 1, 2, 7, block, 40)) if tables else 3
            own = -(-(before + count) // block)
            tables.append([*parent, *(next(numbers) for _ in range(own))])
            contexts.append(len(parent) * block + before)
            tokens.append(count)
        width = max(map(len, tables)) + 1
        self.tables: Ints = np.array([[*each, *[0] * (width - len(each))] for each in tables], np.int32)
        self.contexts, self.tokens = np.array(contexts, np.int32), np.array(tokens, np.int32)
        self.rows = int(self.tokens.sum())
        self._fill_memory(torch.Generator().manual_seed(1))

    def _fill_memory(self, generator: torch.Generator) -> None:
        made = self.made
        used = torch.zeros(1 + int(self.tables.max()), made.block_tokens, dtype=torch.bool)
        ends = (self.contexts + self.tokens).tolist()
        for table, end in zip(self.tables.tolist(), ends, strict=True):
            for at in range(end):
                used[table[at // made.block_tokens], at % made.block_tokens] = True
        self.memory = memory(made, used, generator)
        shape = (self.rows, made.query_heads, made.head_size)
        self.query = torch.randn(shape, generator=generator).to(getattr(torch, made.query_type))

    def forest(self) -> Forest:
        """Each query token as a row: it sees what stands before it, and itself."""
        requests = np.repeat(np.arange(len(self.tokens)), self.tokens)
        first = np.repeat(np.cumsum(self.tokens) - self.tokens, self.tokens)
        lengths = self.contexts[requests] + np.arange(self.rows) - first + 1
        return Forest(self.tables[requests], lengths.astype(np.int32), self.made.block_tokens, 0)

    def run(
        self, costs: Costs | None = None, capacity: Capacity | None = None, programs: int = 3
    ) -> torch.Tensor:
        capacity = capacity or self.made.fill_capacity(self.rows)
        fill = FillPlanner(self.made, capacity, programs, costs).plan(self.tables, self.contexts, self.tokens)
        lists = DeviceLists(self.made, capacity, DEVICE, ragged=True)
        lists.load(fill.plan, fill.limits)
        lists.partial_out.fill_(float("nan"))
        lists.partial_lse.fill_(float("nan"))
        out = torch.full_like(self.query, float("nan"), device=DEVICE)
        tables = torch.from_numpy(self.tables).to(DEVICE)
        kernel = GpuAttention(self.made, DEVICE)
        kernel.run(lists, self.query.to(DEVICE), *self.memory.poisoned, tables, out, scale=0.125)
        return out.cpu()

    def check(self, out: torch.Tensor) -> None:
        forest = self.forest()
        plain = (self.memory.key.float().numpy(), self.memory.value.float().numpy())
        query = self.query.float().numpy()
        expected = attention(query, plain, forest.tables.tolist(), forest.lengths.tolist(), 0.125)
        assert torch.isfinite(out.float()).all()
        assert (out.double() - torch.from_numpy(expected)).abs().max() < BOUNDS[self.made.query_type]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_ragged_children_of_one_parent_and_of_many_are_filled_as_in_float64(seed: int, kind: str) -> None:
    source = random.Random(f"{seed} {kind}")
    made = geometry(source.choice((16, 64)), kind, source.choice((1, 3, 4, 8)))
    family = Family(source, made, source.randint(1, 8))
    for costs in (None, FREE, NEVER):
        family.check(family.run(costs))


def test_what_is_cut_into_many_pieces_is_merged_and_rows_may_see_nothing_of_some() -> None:
    family = Family(random.Random(12), geometry(), 6)
    room = Capacity(400, 4000, 4000, 4000)
    fill = FillPlanner(family.made, room, 64, FREE).plan(family.tables, family.contexts, family.tokens)
    assert fill.plan.partials > family.rows
    assert not fill.limits.all()
    family.check(family.run(FREE, room, programs=64))


def test_lists_without_room_for_partial_results_do_without() -> None:
    family = Family(random.Random(11), geometry(), 6)
    tight = Capacity(family.rows, family.rows, family.rows, 0)
    assert FillPlanner(family.made, tight, 64, FREE).plan(
        family.tables, family.contexts, family.tokens
    ).plan.partials == 0  # fmt: skip
    family.check(family.run(FREE, tight))
