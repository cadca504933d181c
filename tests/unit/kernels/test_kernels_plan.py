"""Plans: every token of every row once, what is shared read once, and lists that never overflow."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tests.support.forests import Forest, random_forest

from parrot_kernels.plan import CPU_COSTS, Capacity, Costs, Plan, PlanError, Planner, Shape

ROWS = 24
BLOCK = 4
FREE = Costs(row=0.0, item=0.0, partial=0.0)
"""Sharing a single block pays."""


def shape(group: int = 2, tile_rows: int = 8, workers: int = 2) -> Shape:
    return Shape(BLOCK, kv_heads=2, group=group, tile_rows=tile_rows, workers=workers)


def covered(plan: Plan, forest: Forest) -> dict[int, Counter[tuple[int, int]]]:
    """Of each row, the places in the KV memory that its items read."""
    flat = forest.tables.reshape(-1)
    found: dict[int, Counter[tuple[int, int]]] = {row: Counter() for row in range(len(forest.lengths))}
    for _, begin, count, offset, tokens, *_ in plan.items.tolist():
        places = [(int(flat[offset + at // BLOCK]), at % BLOCK) for at in range(tokens)]
        for row in plan.row_index[begin : begin + count].tolist():
            found[row].update(places)
    return found


def owned(forest: Forest) -> dict[int, Counter[tuple[int, int]]]:
    """Of each row, the places of its tokens."""
    return {
        row: Counter((int(forest.tables[row, at // BLOCK]), at % BLOCK) for at in range(length))
        for row, length in enumerate(forest.lengths.tolist())
    }


def check_partials(plan: Plan, rows: int) -> None:
    """Each row's partial results are those its items make, each made once; direct rows have none."""
    made: dict[int, list[int]] = {row: [] for row in range(rows)}
    direct: Counter[int] = Counter()
    for _, begin, count, _, _, base, is_direct, _ in plan.items.tolist():
        for place, row in enumerate(plan.row_index[begin : begin + count].tolist()):
            if is_direct:
                direct[row] += 1
            else:
                made[row].append(base + place)
    listed = [plan.partial_index[a:b].tolist() for a, b in pairwise(plan.partial_begin.tolist())]
    assert [sorted(ids) for ids in listed] == [sorted(made[row]) for row in range(rows)]
    every = [number for ids in listed for number in ids]
    assert sorted(every) == list(range(plan.partials))
    for row in range(rows):
        assert direct[row] <= 1
        assert not (direct[row] and made[row])


@pytest.mark.parametrize("costs", [CPU_COSTS, FREE], ids=["cpu", "free"])
@pytest.mark.parametrize("seed", range(40))
def test_every_token_of_every_row_is_read_once(seed: int, costs: Costs) -> None:
    source = random.Random(seed)
    group = source.choice((1, 2, 3, 4, 8))
    made = shape(group, tile_rows=group * source.choice((1, 2, 5, 16)), workers=source.choice((1, 2, 132)))
    planner = Planner(made, Capacity.of(ROWS), costs)
    # One step after another, with other rows: nothing of a step before is left.
    for _ in range(3):
        forest = random_forest(source, source.randint(1, ROWS), BLOCK) if source.random() < 0.9 else _empty()
        plan = planner.plan(forest.tables, forest.lengths)
        assert covered(plan, forest) == owned(forest)
        check_partials(plan, len(forest.lengths))
        assert all(count * group <= max(group, made.tile_rows) for count in plan.items[:, 2].tolist())
        prices = plan.items[:, 7].tolist()
        assert prices == sorted(prices, reverse=True)


def _empty() -> Forest:
    return Forest(np.zeros((3, 2), np.int32), np.zeros(3, np.int32), BLOCK, 1)


def group_of(members: int, prefix: int, suffix: int) -> Forest:
    """Rows with one prefix of so many blocks, and blocks of their own."""
    own = np.arange(members * suffix, dtype=np.int32).reshape(members, suffix) + 10_000
    tables = np.hstack([np.tile(np.arange(1, prefix + 1, dtype=np.int32), (members, 1)), own])
    return Forest(
        np.ascontiguousarray(tables), np.full(members, (prefix + suffix) * BLOCK, np.int32), BLOCK, 1
    )


def read(plan: Plan) -> int:
    """Tokens whose KV is read, those of an item once."""
    return int(plan.items[:, 4].sum())


def test_what_several_rows_share_is_read_once() -> None:
    forest = group_of(4, prefix=100, suffix=3)
    plan = Planner(shape(), Capacity.of(ROWS)).plan(forest.tables, forest.lengths)
    assert read(plan) == (100 + 4 * 3) * BLOCK


def test_prefixes_within_prefixes_are_read_once_each() -> None:
    outer, inner = range(1, 81), range(100, 180)
    tables = [
        [*outer, *(inner if row < 3 else ()), 500 + row, *([0] * (0 if row < 3 else 80))] for row in range(6)
    ]
    forest = Forest(
        np.array(tables, np.int32), np.array([161 * BLOCK] * 3 + [81 * BLOCK] * 3, np.int32), BLOCK, 1
    )
    plan = Planner(shape(tile_rows=64), Capacity.of(ROWS)).plan(forest.tables, forest.lengths)
    assert plan.nodes == 2 + 6
    assert read(plan) == (80 + 80 + 6) * BLOCK


def test_a_block_that_few_share_is_not_worth_a_merge() -> None:
    forest = group_of(2, prefix=1, suffix=60)
    assert Planner(shape(), Capacity.of(ROWS)).plan(forest.tables, forest.lengths).nodes == 2
    assert Planner(shape(), Capacity.of(ROWS), FREE).plan(forest.tables, forest.lengths).nodes == 3


def test_the_last_block_is_shared_only_where_it_is_full_for_both() -> None:
    forest = group_of(2, prefix=50, suffix=0)
    lengths = np.array([50 * BLOCK, 50 * BLOCK - 1], np.int32)
    plan = Planner(shape(), Capacity.of(ROWS), FREE).plan(forest.tables, lengths)
    assert read(plan) == 49 * BLOCK + BLOCK + BLOCK - 1


def test_a_row_that_is_alone_writes_its_output_directly() -> None:
    forest = group_of(1, prefix=5, suffix=1)
    plan = Planner(shape(workers=1), Capacity.of(ROWS)).plan(forest.tables, forest.lengths)
    assert plan.items[:, 6].tolist() == [1]
    assert plan.partials == 0


def test_one_long_row_is_work_for_all() -> None:
    forest = group_of(1, prefix=4_000, suffix=1)
    plan = Planner(shape(workers=16), Capacity.of(ROWS)).plan(forest.tables, forest.lengths)
    # Of two KV heads each.
    assert 2 * len(plan.items) >= 16
    assert max(plan.items[:, 4]) <= 2 * min(plan.items[:, 4])


def test_lists_that_are_small_get_larger_pieces_and_too_small_ones_say_which() -> None:
    forest = group_of(8, prefix=1_000, suffix=200)
    roomy = Planner(shape(workers=64), Capacity.of(8)).plan(forest.tables, forest.lengths)
    tight = Planner(shape(workers=64), Capacity(8, 12, 24, 24)).plan(forest.tables, forest.lengths)
    assert len(roomy.items) > 12 >= len(tight.items)
    assert covered(tight, forest) == owned(forest)
    for capacity, what in (
        (Capacity(8, 4, 64, 64), "items"),
        (Capacity(8, 64, 4, 64), "rows"),
        (Capacity(8, 64, 64, 4), "partials"),
    ):
        with pytest.raises(PlanError, match=what):
            Planner(shape(workers=64), capacity).plan(forest.tables, forest.lengths)


@pytest.mark.parametrize("rows", [24, 128, 256])
def test_prefixes_of_prefixes_of_prefixes_are_planned_however_many(rows: int) -> None:
    history = np.arange(1, 4 * rows + 1, dtype=np.int32)
    tables = np.zeros((rows, 4 * rows + 1), np.int32)
    for row in range(rows):
        tables[row, : 4 * (row + 1)] = history[: 4 * (row + 1)]
        tables[row, 4 * (row + 1)] = 10_000 + row
    lengths = (np.arange(1, rows + 1, dtype=np.int32) * 4 * BLOCK) + 1
    forest = Forest(tables, lengths, BLOCK, 1)
    for costs in (CPU_COSTS, FREE):
        plan = Planner(shape(), Capacity.of(rows), costs).plan(tables, lengths)
        assert covered(plan, forest) == owned(forest)
        check_partials(plan, rows)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_is_known_gives_what_comparing_finds(seed: int) -> None:
    source = random.Random(seed)
    forest = random_forest(source, ROWS, BLOCK)
    planner = Planner(shape(), Capacity.of(ROWS), FREE)
    found = planner.plan(forest.tables, forest.lengths)
    expected = (read(found), found.nodes)
    rows = [
        table[: length // BLOCK]
        for table, length in zip(forest.tables.tolist(), forest.lengths.tolist(), strict=True)
    ]
    order = sorted(range(ROWS), key=lambda row: (rows[row], row))
    shared = [0, *(_common(rows[a], rows[b]) for a, b in pairwise(order))]
    told = planner.plan_tree(
        forest.tables, forest.lengths, np.array(order, np.int32), np.array(shared, np.int32)
    )
    assert (read(told), told.nodes) == expected
    assert covered(told, forest) == owned(forest)


def _common(a: list[int], b: list[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    source = random.Random(seed)
    forest = random_forest(source, ROWS, BLOCK)
    other, _ = forest.shuffled(source)
    sizes = []
    for each in (forest, other):
        plan = Planner(shape(tile_rows=1024), Capacity.of(ROWS), FREE).plan(each.tables, each.lengths)
        sizes.append((plan.nodes, sorted(plan.items[:, 4].tolist()), plan.partials))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("tables", "lengths", "why"),
    [
        (np.zeros((2, 3), np.int64), np.zeros(2, np.int32), "tables"),
        (np.zeros((2, 6), np.int32)[:, ::2], np.zeros(2, np.int32), "tables"),
        (np.zeros((2, 3), np.int32), np.zeros((2, 1), np.int32), "lengths"),
        (np.zeros((1, 3), np.int32), np.zeros(2, np.int32), "2 rows have 1"),
        (np.zeros((2, 3), np.int32), np.full(2, 13, np.int32), "13 tokens"),
        (np.zeros((ROWS + 1, 3), np.int32), np.zeros(ROWS + 1, np.int32), "room for"),
    ],
)
def test_what_is_no_batch_is_refused(tables: np.ndarray, lengths: np.ndarray, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Planner(shape(), Capacity.of(ROWS)).plan(tables, lengths)


@pytest.mark.parametrize("wrong", [{"tile_rows": 1}, {"group": 0}, {"workers": 0}])
def test_a_shape_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        Planner(shape(**wrong), Capacity.of(ROWS))
