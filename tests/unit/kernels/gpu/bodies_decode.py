"""Decode steps against float64: run by `test_interpreted`, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.forests import Forest, random_forest
from tests.unit.kernels.gpu.cases import (
    BOUNDS,
    DEVICE,
    EXACT,
    FREE,
    LAYOUTS,
    NEVER,
    TYPES,
    Case,
    check,
    geometry,
)

from parrot_kernels.gpu import AttentionError
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Capacity, Planner


def forest_of(tables: list[list[int]], lengths: list[int], block_tokens: int) -> Forest:
    width = max(map(len, tables))
    padded = np.array([[*table, *[0] * (width - len(table))] for table in tables], np.int32)
    return Forest(padded, np.array(lengths, np.int32), block_tokens, 1 + int(padded.max()))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(5))
def test_random_forests_come_out_as_in_float64(seed: int, kind: str) -> None:
    source = random.Random(f"{seed} {kind}")
    block = source.choice((16, 32, 64, 128))
    forest = random_forest(source, source.randint(1, 8), block)
    made = geometry(
        group=source.randint(1, 8), kv_heads=source.choice((1, 1, 2)), head_size=source.choice((64, 128)),
        block_tokens=block, kind=kind,
    )  # fmt: skip
    case = Case(forest, made, layout=source.choice(LAYOUTS))
    for costs in (None, FREE, NEVER):
        check(case, case.run(costs, padding=source.choice((0, 3))))


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("members", [1, 2, 5, 6, 33])
def test_groups_of_every_size_fill_tiles_of_few_rows_and_of_many(members: int, block: int) -> None:
    tables = [[1, 2, 3, 10 + row] for row in range(members)]
    lengths = [3 * block + 1 + row % block for row in range(members)]
    case = Case(forest_of(tables, lengths, block), geometry(group=3, kv_heads=1, block_tokens=block))
    check(case, case.run(FREE))


@pytest.mark.parametrize("group", [16, 20, 64])
def test_groups_that_no_tile_of_few_rows_holds_are_attended(group: int) -> None:
    forest = random_forest(random.Random(4), 3, 64)
    case = Case(forest, geometry(group=group, kv_heads=1, block_tokens=64))
    check(case, case.run(FREE))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [16, 64])
def test_float8_memories_are_read_with_their_scales(block: int, kind: str) -> None:
    forest = random_forest(random.Random(3), 6, block)
    case = Case(forest, geometry(group=4, kv_heads=1, block_tokens=block, kind=kind, kv="float8_e4m3fn"))
    check(case, case.run(FREE))


def test_neither_sharing_nor_the_cut_of_the_work_changes_what_comes_out() -> None:
    case = Case(random_forest(random.Random(3), 8, 32), geometry(group=3, kv_heads=1, block_tokens=32))
    base = case.run()
    for costs in (FREE, NEVER):
        for workers in (1, 64):
            for tile_rows in (3, 64):
                out = case.run(costs, workers=workers, tile_rows=tile_rows)
                assert (out[case.busy] - base[case.busy]).abs().max() < BOUNDS[EXACT]


def test_neither_the_order_of_rows_nor_where_blocks_lie_matters() -> None:
    forest = random_forest(random.Random(5), 10, 64)
    case = Case(forest, geometry(block_tokens=64))
    base = case.run(FREE)
    other, order = case.forest.shuffled(random.Random(6))
    places = np.random.default_rng(1).permutation(other.blocks).astype(np.int32)
    moved = Case(replace(other, tables=places[other.tables]), case.made)
    moved.query = case.query[order]
    for to, was in zip(moved.memory.poisoned, case.memory.poisoned, strict=True):
        to[torch.from_numpy(places).long().to(DEVICE)] = was
    out = moved.run(FREE)
    assert (out[moved.busy] - base[order][moved.busy]).abs().max() < BOUNDS[EXACT]
    assert torch.isnan(out).any(-1).any(-1).tolist() == torch.isnan(base[order]).any(-1).any(-1).tolist()


def test_the_same_lists_serve_one_plan_after_another() -> None:
    made = geometry(group=2, block_tokens=16)
    lists = DeviceLists(made, made.capacity(16), DEVICE)
    for seed, rows in enumerate((16, 3, 11, 1, 16)):
        case = Case(random_forest(random.Random(seed), rows, 16), made, seed=seed)
        check(case, case.run(FREE, lists, padding=16 - rows))


def test_a_step_without_tokens_writes_nothing() -> None:
    forest = Forest(np.zeros((3, 2), np.int32), np.zeros(3, np.int32), 16, 1)
    assert torch.isnan(Case(forest, geometry()).run()).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [32, 48, 64, 192])
def test_lengths_around_a_tile_and_a_block_are_all_right(block: int, layout: str) -> None:
    lengths = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129]
    tables = [list(range(1 + 9 * row, 10 + 9 * row)) for row in range(len(lengths))]
    made = geometry(group=1, kv_heads=2, block_tokens=block)
    case = Case(forest_of(tables, lengths, block), made, layout=layout)
    check(case, case.run())


def test_more_partial_results_than_are_merged_at_once_are_merged() -> None:
    tables = [list(range(1, 42)), [*range(1, 20), *range(50, 60)]]
    case = Case(forest_of(tables, [41 * 16 - 5, 29 * 16], 16), geometry(group=2, kv_heads=1))
    # The largest score is anywhere: what was summed before weighs less afterwards.
    case.query *= 4
    check(case, case.run(FREE, workers=10_000), bound=1e-2)
    assert case.partials > 2 * 16


def test_large_scores_do_not_overflow() -> None:
    case = Case(random_forest(random.Random(1), 6, 16), geometry(group=1, kv_heads=1))
    case.query *= 300
    out = case.run(FREE)
    check(case, out, bound=1e-2)


def test_queries_and_output_may_be_parts_of_larger_tensors() -> None:
    case = Case(random_forest(random.Random(2), 5, 16), geometry())
    whole = torch.full((2, *case.query.shape), float("nan"), dtype=case.query.dtype, device=DEVICE)
    query = torch.stack([case.query, case.query], 1).to(DEVICE)[:, 1]
    kernel, capacity = GpuAttention(case.made, DEVICE), case.made.capacity(5)
    lists = DeviceLists(case.made, capacity, DEVICE)
    lists.load(Planner(case.made.shape(2), capacity, FREE).plan(case.forest.tables, case.forest.lengths))
    tables = torch.from_numpy(case.forest.tables).to(DEVICE)
    kernel.run(lists, query, *case.memory.poisoned, tables, whole[1], scale=case.scale)
    check(case, whole[1].cpu())
    assert torch.isnan(whole[0]).all()


def test_what_does_not_fit_together_is_refused() -> None:
    case = Case(random_forest(random.Random(1), 4, 16), geometry())
    made, kernel = case.made, GpuAttention(case.made, DEVICE)
    lists = DeviceLists(made, made.capacity(4), DEVICE)
    lists.load(Planner(made.shape(2), made.capacity(4)).plan(case.forest.tables, case.forest.lengths))
    query, (key, value) = case.query.to(DEVICE), case.memory.poisoned
    tables = torch.from_numpy(case.forest.tables).to(DEVICE)
    wide = torch.cat([tables, tables], 1)
    for wrong, why in (
        ((query.double(), key, value, tables), "query"),
        ((query[:, :3], key, value, tables), "query"),
        ((query[:2], key, value, tables), "4 rows"),
        ((query, key.double(), value, tables), "key"),
        ((query, key, value[..., :-1], tables), "value"),
        ((query, key, value.transpose(2, 3).contiguous().transpose(2, 3), tables), "value"),
        ((query, key, value, tables.long()), "int32"),
        ((query, key, value, wide), "planned"),
    ):
        with pytest.raises(AttentionError, match=why):
            kernel.run(lists, *wrong, torch.empty_like(wrong[0]), scale=1.0)


def test_lists_refuse_plans_they_have_no_room_for() -> None:
    case = Case(random_forest(random.Random(1), 8, 16), geometry())
    planner = Planner(case.made.shape(64), Capacity.of(8), FREE)
    plan = planner.plan(case.forest.tables, case.forest.lengths)
    for capacity, what in (
        (Capacity(4, 500, 500, 500), "rows"),
        (Capacity(8, 1, 500, 500), "items"),
        (Capacity(8, 500, 1, 500), "row_index"),
        (Capacity(8, 500, 500, 1), "partials"),
    ):
        with pytest.raises(AttentionError, match=f"of {what};"):
            DeviceLists(case.made, capacity, DEVICE).load(plan)
    with pytest.raises(AttentionError, match="limit"):
        DeviceLists(case.made, Capacity.of(8), DEVICE, ragged=True).load(plan)
    other = geometry(block_tokens=32)
    with pytest.raises(AttentionError, match="blocks of 16"):
        DeviceLists(other, Capacity.of(8), DEVICE).load(plan)
