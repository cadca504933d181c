"""What the kernels are made for, and what follows for the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parrot_kernels.gpu import AttentionError, Geometry
from parrot_kernels.gpu.variants import boxes_fit
from parrot_kernels.plan import Planner

MODEL = Geometry(32, 8, 128, 64, "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"query_heads": 30}, "whole groups"),
        ({"query_heads": 0}, "whole groups"),
        ({"kv_heads": 0}, "whole groups"),
        ({"query_heads": 65, "kv_heads": 1}, "64 at most"),
        ({"head_size": 96}, "64, 128"),
        ({"head_size": 256}, "64, 128"),
        ({"block_tokens": 8}, "multiple of 16"),
        ({"block_tokens": 0}, "multiple of 16"),
        ({"query_type": "float8_e4m3fn"}, "queries of"),
        ({"query_type": "int8"}, "queries of"),
        ({"kv_type": "float16"}, "KV of float16"),
        ({"kv_type": "float8_e5m2"}, "KV of float8_e5m2"),
    ],
)
def test_what_no_kernel_is_made_for_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(AttentionError, match=why):
        replace(MODEL, **wrong)


def test_partial_results_cost_more_where_tokens_are_smaller() -> None:
    small = replace(MODEL, kv_type="float8_e4m3fn")
    assert small.kv_token_bytes == MODEL.kv_token_bytes / 2 == 256
    assert small.costs().partial == 2 * MODEL.costs().partial
    assert MODEL.partial_row_bytes == 32 * 129 * 4


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize("geometry", [MODEL, replace(MODEL, kv_heads=32)], ids=["grouped", "each its own"])
def test_lists_of_the_capacity_hold_plans_of_long_rows_as_they_are_best(
    geometry: Geometry, rows: int
) -> None:
    tables = np.zeros((rows, 2_000), np.int32)
    tables[:, :1_900] = np.arange(1, 1_901)
    tables[:, 1_900:] = 2_000 + np.arange(rows * 100).reshape(rows, 100)
    lengths = np.full(rows, 2_000 * 64 - 7, np.int32)
    found = [
        len(Planner(geometry.shape(264), capacity, geometry.costs()).plan(tables, lengths).items)
        for capacity in (geometry.capacity(rows), geometry.capacity(16 * rows))
    ]
    assert found[0] > 1
    assert found[0] >= 0.5 * found[1]


@pytest.mark.parametrize(
    ("block_tokens", "strides", "address", "fits"),
    [
        (64, (65_536, 1_024, 128), 0, True),
        (128, (131_072, 128, 16_384), 256, True),
        (32, (32_768, 1_024, 128), 0, False),
        (64, (65_536, 1_028, 128), 0, False),
        (64, (65_536, 1_024, 132), 0, False),
        (64, (65_540, 1_024, 128), 0, False),
        (64, (65_536, 1_024, 128), 8, False),
    ],
)
def test_boxes_are_fetched_only_where_each_begins_at_16_bytes(
    block_tokens: int, strides: tuple[int, ...], address: int, *, fits: bool
) -> None:
    assert boxes_fit(replace(MODEL, block_tokens=block_tokens), strides, address) == fits
