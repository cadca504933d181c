"""Trees that are told: taken where they are the rows', found out where they are not."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from tests.support.forests import Forest, random_forest

from parrot_kernels.plan import Capacity, Costs, Plan, PlanError, Planner, Shape, TreeError
from parrot_kernels.plan.planner import Ints
from parrot_kernels.vllm_backend.rows import decode_rows
from parrot_kernels.vllm_backend.tree import Tree, TreeRows

ROWS, BLOCK = 20, 4
FREE = Costs(row=0.0, item=0.0, partial=0.0)


def planner() -> Planner:
    return Planner(Shape(BLOCK, 2, 2, 8, 2), Capacity.of(ROWS), FREE)


def known(forest: Forest) -> tuple[Ints, Ints]:
    """The rows in the order of their tables, and what each has in common with the one before."""
    full = [forest.tables[row, : length // BLOCK].tolist() for row, length in enumerate(forest.lengths)]
    order = sorted(range(len(full)), key=full.__getitem__)
    shared = [0] + [_common(full[a], full[b]) for a, b in pairwise(order)]
    return np.array(order, np.int32), np.array(shared, np.int32)


def _common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def work(plan: Plan) -> tuple[int, list[int]]:
    return plan.nodes, sorted(plan.items[:, 4].tolist())


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_is_the_rows_gives_the_plan_of_their_tables(seed: int) -> None:
    forest = random_forest(random.Random(seed), ROWS, BLOCK)
    told = planner().plan_tree(forest.tables, forest.lengths, *known(forest))
    assert work(told) == work(planner().plan(forest.tables, forest.lengths))


@pytest.mark.parametrize("seed", range(20))
def test_a_row_that_is_said_to_share_more_than_it_does_is_found_out(seed: int) -> None:
    forest = random_forest(random.Random(seed), ROWS, BLOCK)
    order, shared = known(forest)
    for at in range(1, ROWS):
        more = shared.copy()
        more[at] += 1
        with pytest.raises(TreeError, match=r"same ones|full in both"):
            planner().plan_tree(forest.tables, forest.lengths, order, more)


def _wrong(order: Ints, shared: Ints, what: str) -> tuple[Ints, Ints]:
    order, shared = order.copy(), shared.copy()
    match what:
        case "twice":
            order[0] = order[1]
        case "nobody":
            order[0] = ROWS
        case "negative":
            order[0] = -1
        case "shares less than nothing":
            shared[1] = -1
        case "shares more than there is":
            shared[1] = 2**30
        case "fewer rows":
            order = order[1:]
        case "fewer shares":
            shared = shared[1:]
    return order, shared


@pytest.mark.parametrize(
    "what",
    [
        *("twice", "nobody", "negative", "fewer rows", "fewer shares"),
        *("shares less than nothing", "shares more than there is"),
    ],
)
def test_what_is_no_tree_of_the_rows_is_refused(what: str) -> None:
    forest = random_forest(random.Random(1), ROWS, BLOCK)
    with pytest.raises(TreeError):
        planner().plan_tree(forest.tables, forest.lengths, *_wrong(*known(forest), what))


def test_a_table_of_another_type_is_no_tree_error() -> None:
    forest = random_forest(random.Random(1), ROWS, BLOCK)
    order, shared = known(forest)
    with pytest.raises(PlanError, match="int32"):
        planner().plan_tree(forest.tables, forest.lengths, order.astype(np.int64), shared)


def test_rows_of_a_tree_are_looked_up_once_and_again_when_asked() -> None:
    tree, places = Tree(("a", "b", "c"), np.array([0, 4, 0], np.int32)), {"a": 2, "b": 0, "c": 1}
    rows = TreeRows()
    assert rows.order(3, anew=False) is None
    rows.tell(tree, places)
    first = rows.order(3, anew=False)
    assert first is not None
    assert (first[0].tolist(), first[1].tolist()) == ([2, 0, 1], [0, 4, 0])
    places["a"], places["b"] = 0, 2
    again = rows.order(3, anew=False), rows.order(3, anew=True)
    assert [each and each[0].tolist() for each in again] == [[2, 0, 1], [0, 2, 1]]


def test_a_tree_of_other_requests_names_no_row() -> None:
    rows = TreeRows()
    rows.tell(Tree(("a", "b"), np.zeros(2, np.int32)), {"a": 0})
    assert rows.order(3, anew=False) is None
    order = rows.order(2, anew=False)
    assert order is not None
    assert order[0].tolist() == [0, -1]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([], 0), ([1], 1), ([1, 1, 1], 3), ([1, 1, 0, 0], 2), ([1, 3, 1], 1), ([5], 0), ([0, 1], 0)],
)
def test_decode_rows_are_those_in_front_with_one_token_each(counts: list[int], expected: int) -> None:
    assert decode_rows(np.cumsum([0, *counts], dtype=np.int32)) == expected
