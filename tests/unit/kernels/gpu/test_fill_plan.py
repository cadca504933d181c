"""Plans of fills: each new token sees every token before it once, and what children share is one item's."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tests.support.forests import Ints

from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.fill import Fill, FillPlanner
from parrot_kernels.plan import Capacity, Costs, PlanError

BLOCK = 16
FREE = Costs(row=0.0, item=0.0, partial=0.0)
MODEL = Geometry(8, 2, 64, BLOCK, "bfloat16", "bfloat16")
TILE = 128 // 4
"""Query tokens of a tile."""


def planner(rows: int = 2_000, programs: int = 8, costs: Costs | None = None) -> FillPlanner:
    return FillPlanner(MODEL, Capacity(rows, 4_000, 40_000, 40_000), programs, costs)


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int32)


def family(source: random.Random, requests: int) -> tuple[Ints, Ints, Ints]:
    """Children of nested prefixes, with contexts that end anywhere and any number of new tokens."""
    numbers = iter(range(1, 100_000))
    parents: list[list[int]] = [[]]
    for _ in range(4):
        parents.append([*source.choice(parents), *(next(numbers) for _ in range(source.randint(1, 9)))])
    tables, contexts, tokens = [], [], []
    for _ in range(requests):
        parent, before, count = source.choice(parents), source.choice((0, 0, 3, 40)), source.randint(0, 90)
        tables.append([*parent, *(next(numbers) for _ in range(-(-(before + count) // BLOCK)))])
        contexts.append(len(parent) * BLOCK + before)
        tokens.append(count)
    width = max(map(len, tables)) + 1
    padded = np.array([[*each, *[0] * (width - len(each))] for each in tables], np.int32)
    return padded, ints(*contexts), ints(*tokens)


def seen(fill: Fill) -> dict[int, Counter[tuple[int, int]]]:
    """Of each row, the places in the KV memory that its items let it see."""
    plan, flat = fill.plan, fill.plan.tables.reshape(-1)
    found: dict[int, Counter[tuple[int, int]]] = {
        row: Counter() for row in range(len(plan.partial_begin) - 1)
    }
    for _, begin, count, offset, tokens, *_ in plan.items.tolist():
        assert tokens <= (len(flat) - offset) * BLOCK
        for place in range(begin, begin + count):
            limit = int(fill.limits[place])
            assert 0 <= limit <= tokens
            found[int(plan.row_index[place])].update(
                (int(flat[offset + at // BLOCK]), at % BLOCK) for at in range(limit)
            )
    return found


def causal(tables: Ints, contexts: Ints, tokens: Ints) -> dict[int, Counter[tuple[int, int]]]:
    rows = [
        Counter((int(table[at // BLOCK]), at % BLOCK) for at in range(context + number + 1))
        for table, context, count in zip(tables, contexts.tolist(), tokens.tolist(), strict=True)
        for number in range(count)
    ]
    return dict(enumerate(rows))


def check_partials(fill: Fill) -> None:
    plan = fill.plan
    rows = len(plan.partial_begin) - 1
    made: dict[int, list[int]] = {row: [] for row in range(rows)}
    written: Counter[int] = Counter()
    for _, begin, count, _, _, base, direct, _ in plan.items.tolist():
        for place, row in enumerate(plan.row_index[begin : begin + count].tolist()):
            written[row] += 1
            if not direct:
                made[row].append(base + place)
    listed = [sorted(plan.partial_index[a:b].tolist()) for a, b in pairwise(plan.partial_begin.tolist())]
    assert listed == [sorted(made[row]) for row in range(rows)]
    assert sorted(number for ids in listed for number in ids) == list(range(plan.partials))
    assert all(bool(made[row]) != (written[row] == 1 and not made[row]) for row in range(rows))


@pytest.mark.parametrize("costs", [None, FREE], ids=["gpu", "free"])
@pytest.mark.parametrize("seed", range(12))
def test_every_new_token_sees_every_token_before_it_once(seed: int, costs: Costs | None) -> None:
    source = random.Random(seed)
    tables, contexts, tokens = family(source, source.randint(1, 12))
    fill = planner(programs=source.choice((1, 8, 132)), costs=costs).plan(tables, contexts, tokens)
    assert seen(fill) == causal(tables, contexts, tokens)
    check_partials(fill)
    prices = fill.plan.items[:, 7].tolist()
    assert prices == sorted(prices, reverse=True)
    assert all(count <= TILE for count in fill.plan.items[:, 2].tolist())


def test_a_parent_is_read_once_for_the_tokens_of_all_its_children() -> None:
    parent, children = 64, 8
    own = np.arange(children, dtype=np.int32)[:, None] + 1_000
    tables = np.hstack([np.tile(np.arange(1, parent + 1, dtype=np.int32), (children, 1)), own])
    contexts, tokens = ints(*[parent * BLOCK] * children), ints(*[TILE // children] * children)
    plan = planner(programs=1).plan(tables, contexts, tokens).plan
    shared = plan.items[plan.items[:, 0] == 1]
    assert int(shared[:, 4].sum()) == parent * BLOCK
    assert set(shared[:, 2].tolist()) == {TILE}
    assert len(plan.items) - len(shared) == children


def test_children_that_fill_tiles_by_themselves_are_not_merged_for_nothing() -> None:
    tables = np.hstack(
        [np.tile(np.arange(1, 65, dtype=np.int32), (2, 1)), ints(70, 71, 80, 81).reshape(2, 2)]
    )
    plan = planner(programs=1).plan(tables, ints(1024, 1024), ints(TILE, TILE)).plan
    assert not plan.items[:, 0].any()
    assert plan.partials == 0


@pytest.mark.parametrize("room", [0, 40, 400])
def test_lists_that_are_small_get_larger_pieces_and_share_less(room: int) -> None:
    tables, contexts, tokens = family(random.Random(5), 10)
    rows = int(tokens.sum())
    capacity = Capacity(rows, rows, rows + room, room)
    plan = FillPlanner(MODEL, capacity, 132, FREE).plan(tables, contexts, tokens)
    assert plan.plan.partials <= room
    assert len(plan.plan.items) <= rows
    assert len(plan.limits) <= rows + room
    assert seen(plan) == causal(tables, contexts, tokens)


def test_nothing_to_fill_is_a_plan_of_nothing() -> None:
    for tables in (np.zeros((0, 1), np.int32), np.zeros((3, 1), np.int32)):
        nought = np.zeros(len(tables), np.int32)
        fill = planner().plan(tables, nought, nought)
        assert (len(fill.plan.items), len(fill.limits), fill.plan.partial_begin.tolist()) == (0, 0, [0])


@pytest.mark.parametrize(
    ("tables", "contexts", "tokens", "why"),
    [
        (np.zeros((1, 2), np.int64), ints(0), ints(1), "int32"),
        (np.zeros((2, 2), np.int32), ints(0), ints(1), "one a request"),
        (np.zeros((1, 2), np.int32), ints(-1), ints(1), "0 at least"),
        (np.zeros((1, 4), np.int32)[:, ::2], ints(0), ints(1), "no gaps"),
        (np.zeros((1, 2), np.int32), ints(30), ints(3), "2 blocks"),
        (np.zeros((1, 2), np.int32), ints(2**31 - 1), ints(2**31 - 1), "2 blocks"),
        (np.zeros((1, 200), np.int32), ints(0), ints(2_001), "room for 2000"),
    ],
)
def test_what_is_no_fill_is_refused(tables: Ints, contexts: Ints, tokens: Ints, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        planner().plan(tables, contexts, tokens)
