"""The physical limit, against numbers computed by hand for a prefix of 6,000 tokens on an H200."""

from __future__ import annotations

import numpy as np
import pytest

from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.limits import H200, Hardware, Work, limit_us, step_bytes, step_flops
from parrot_kernels.plan import Capacity, Costs, Planner, Shape

MHA_7B = Geometry(32, 32, 128, 64, "bfloat16", "bfloat16")
MHA_13B = Geometry(40, 40, 128, 64, "bfloat16", "bfloat16")
GQA_8B = Geometry(32, 8, 128, 64, "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("geometry", "rows", "suffix_tokens", "expected_us"),
    [
        (MHA_7B, 8, 200, 29.0),
        (MHA_7B, 16, 200, 35.1),
        (MHA_7B, 64, 200, 71.9),
        (MHA_7B, 8, 800, 47.3),
        (MHA_7B, 64, 800, 218.2),
        (MHA_13B, 8, 200, 36.3),
        (MHA_13B, 64, 200, 89.9),
        (GQA_8B, 8, 200, 7.27),
        (GQA_8B, 64, 200, 18.2),
        (GQA_8B, 64, 800, 54.7),
    ],
)
def test_the_limit_of_one_group_is_what_was_computed_by_hand(
    geometry: Geometry, rows: int, suffix_tokens: int, expected_us: float
) -> None:
    found_us = limit_us(geometry, Work.of_groups(rows, 6_000, suffix_tokens))
    assert found_us == pytest.approx(expected_us, rel=0.01)


@pytest.mark.parametrize(("rows", "expected_us"), [(8, 189), (16, 378), (32, 756), (64, 1512)])
def test_without_sharing_every_row_reads_for_itself(rows: int, expected_us: float) -> None:
    work = Work.of_groups(rows, 6_000, 200)
    assert limit_us(MHA_7B, work.unshared) == pytest.approx(expected_us, rel=0.01)


@pytest.mark.parametrize(("groups", "ceiling"), [(1, 12.9), (4, 8.2), (8, 5.6), (16, 3.4)])
def test_more_groups_leave_less_to_share(groups: int, ceiling: float) -> None:
    work = Work.of_groups(64, 6_000, 400, groups)
    assert limit_us(MHA_7B, work.unshared) / limit_us(MHA_7B, work) == pytest.approx(ceiling, rel=0.01)


def test_one_tokens_bytes_and_flops_are_counted_one_by_one() -> None:
    work = Work(rows=1, distinct_tokens=1, seen_tokens=1, table_blocks=1)
    # Key and value of 8 heads, query and output of 32, all of 128 numbers of 2 bytes; one block's number.
    assert step_bytes(GQA_8B, work) == 2 * 8 * 128 * 2 + 2 * 32 * 128 * 2 + 4
    assert step_flops(GQA_8B, work) == 2 * 32 * 128 * 2


def test_where_many_rows_read_the_same_computing_is_the_limit() -> None:
    geometry = Geometry(32, 8, 128, 64, "bfloat16", "float8_e4m3fn")
    work = Work.of_groups(256, 6_000, 0)
    assert limit_us(geometry, work) == pytest.approx(1e6 * step_flops(geometry, work) / H200.flops_per_s)
    slow = Hardware(H200.bytes_per_s / 1000, H200.flops_per_s)
    assert limit_us(geometry, work, slow) == pytest.approx(
        1e6 * step_bytes(geometry, work) / slow.bytes_per_s
    )


@pytest.mark.parametrize("tile_rows", [4, 64])
def test_a_plan_reads_what_its_forest_has_however_it_is_cut(tile_rows: int) -> None:
    tables = np.array([[1, 2, 3, 10 + row] for row in range(6)], np.int32)
    lengths = np.full(6, 3 * 64 + 5, np.int32)
    planner = Planner(Shape(64, 8, 4, tile_rows, 16), Capacity.of(6), Costs(0, 0, 0))
    work = Work.of_plan(planner.plan(tables, lengths))
    assert work == Work(6, 3 * 64 + 6 * 5, 6 * (3 * 64 + 5), 3 + 6)
