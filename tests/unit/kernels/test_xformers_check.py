"""The cross-check's forest and what it asks of xFormers, by kernels of plain PyTorch in its place."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.forests import Forest, random_forest

from parrot_kernels.reference import attention
from parrot_kernels.xformers_check import (
    Level,
    Xformers,
    XformersError,
    XformersForest,
    check_versions,
    levels,
)

CPU = torch.device("cpu")
BLOCK = 16


class Plain:
    """xFormers' two functions as its documentation has them, in float64."""

    def prepare(self, level: Level, block_tokens: int, device: torch.device) -> Any:
        return level, block_tokens

    def partial(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        level, block = bias
        _, rows, heads, group, size = query.shape
        assert key.shape[2:] == value.shape[2:] == (heads, group, size)
        out = torch.empty(1, rows, heads, group, size, dtype=torch.float64)
        sums = torch.empty(1, heads, group, rows, dtype=torch.float64)
        begin = 0
        for members, tokens, table in zip(level.members, level.tokens, level.tables, strict=True):
            at = [int(table[token // block]) * block + token % block for token in range(tokens)]
            mine = slice(begin, begin + members)
            scores = torch.einsum("rghd,tghd->ghrt", query[0, mine].double(), key[0, at].double()) * scale
            out[0, mine] = torch.einsum("ghrt,tghd->rghd", scores.softmax(-1), value[0, at].double())
            sums[0, :, :, mine] = scores.logsumexp(-1)
            begin += members
        assert begin == rows
        return out.float(), sums

    def merge(self, outputs: torch.Tensor, sums: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        assert outputs.dtype == torch.float32
        weights = sums.softmax(0).movedim(-1, 2)[..., None]
        return (outputs * weights).sum(0).to(dtype)


def of_row(found: list[Level], forest: Forest) -> dict[int, Counter[tuple[int, int]]]:
    """Of each row, the places in memory that its nodes read."""
    read: dict[int, Counter[tuple[int, int]]] = {row: Counter() for row in range(len(forest.lengths))}
    for level in found:
        rows = iter(level.rows.tolist())
        for members, tokens, table in zip(level.members, level.tokens, level.tables, strict=True):
            places = [(int(table[at // BLOCK]), at % BLOCK) for at in range(tokens)]
            for _ in range(members):
                read[next(rows)].update(places)
        assert next(rows, None) is None
    return read


@pytest.mark.parametrize("seed", range(30))
def test_every_token_of_a_row_is_on_one_level_and_shared_ones_are_read_once(seed: int) -> None:
    forest = random_forest(random.Random(seed), 12, BLOCK)
    found = levels(forest.tables, forest.lengths, BLOCK)
    owned = {
        row: Counter((int(forest.tables[row, at // BLOCK]), at % BLOCK) for at in range(length))
        for row, length in enumerate(forest.lengths.tolist())
    }
    assert of_row(found, forest) == owned
    # Blocks that are full in several rows are in one node: none is read twice.
    full = {
        int(block)
        for row, length in enumerate(forest.lengths.tolist())
        for block in forest.tables[row, : length // BLOCK]
    }
    read = Counter(
        int(table[block])
        for level in found
        for tokens, table in zip(level.tokens, level.tables, strict=True)
        for block in range(tokens // BLOCK)
    )
    assert read == dict.fromkeys(full, 1)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_levels_merged_are_the_attention_that_float64_finds(
    seed: int, group: int, dtype: torch.dtype, bound: float
) -> None:
    source = random.Random(seed)
    forest = random_forest(source, 9, BLOCK)
    generator = torch.Generator().manual_seed(seed)
    blocks, heads, size = int(forest.tables.max()) + 1, 2, 32
    q = torch.randn(9, heads * group, size, generator=generator).to(dtype)
    # Keys and values side by side, as vLLM keeps them.
    memory = torch.randn(blocks, BLOCK, heads, 2 * size, generator=generator).to(dtype)
    key, value = memory.chunk(2, dim=-1)
    out = torch.full_like(q, torch.nan)
    XformersForest(forest.tables, forest.lengths, BLOCK, CPU, Plain()).attend(q, key, value, out, 0.2)
    busy = np.flatnonzero(forest.lengths)
    expected = attention(
        q.float().numpy(),
        (key.float().numpy(), value.float().numpy()),
        forest.tables.tolist(),
        forest.lengths.tolist(),
        0.2,
    )
    assert np.abs(out[busy].float().numpy() - expected[busy]).max() < bound
    assert torch.isnan(out[np.setdiff1d(np.arange(9), busy)]).all()


def test_a_step_in_which_no_row_has_tokens_is_left_as_it_is() -> None:
    out = torch.full((2, 2, 32), torch.nan)
    empty = np.zeros((2, 1), np.int32), np.zeros(2, np.int32)
    memory = torch.zeros(1, BLOCK, 1, 32)
    XformersForest(*empty, BLOCK, CPU, Plain()).attend(torch.zeros_like(out), memory, memory, out, 1.0)
    assert torch.isnan(out).all()


def test_memory_whose_tokens_are_not_evenly_apart_is_refused() -> None:
    forest = random_forest(random.Random(1), 4, BLOCK)
    heads_first = torch.zeros(int(forest.tables.max()) + 1, 2, BLOCK, 32).transpose(1, 2)
    made = XformersForest(forest.tables, forest.lengths, BLOCK, CPU, Plain())
    q = torch.zeros(4, 2, 32)
    with pytest.raises(XformersError, match="evenly apart"):
        made.attend(q, heads_first, heads_first, torch.empty_like(q), 1.0)


def test_without_a_gpu_it_says_that_it_needs_one() -> None:
    with pytest.raises(XformersError, match="needs a GPU, and this is cpu"):
        Xformers(CPU)


@pytest.mark.parametrize(
    ("xformers", "triton", "fit"),
    [
        ("0.0.35", "3.9.0", False),
        ("0.0.35+cu128.d2026", "3.10.1", False),
        ("0.0.34", "4.0.0", False),
        ("0.0.35", "3.8.0", True),
        ("0.0.35", "3.6.0+git123", True),
        ("0.0.36", "3.9.0", True),
        ("0.1.0", "3.9.0", True),
    ],
)
def test_a_triton_without_block_pointers_is_told_apart(xformers: str, triton: str, fit: bool) -> None:
    if fit:
        check_versions(xformers, triton)
        return
    with pytest.raises(XformersError, match="block pointers"):
        check_versions(xformers, triton)


@pytest.mark.skipif(importlib.util.find_spec("xformers") is None, reason="xFormers is not installed")
@pytest.mark.filterwarnings("ignore")
def test_xformers_own_bias_lets_each_row_see_its_nodes_tokens_and_nothing_else() -> None:
    from xformers.ops.fmha.attn_bias import PagedBlockDiagonalPaddedKeysMask

    forest = random_forest(random.Random(4), 8, BLOCK)
    for level in levels(forest.tables, forest.lengths, BLOCK):
        tables = torch.from_numpy(level.tables)
        bias = PagedBlockDiagonalPaddedKeysMask.from_seqlens(
            level.members, level.tokens, tables, BLOCK, device=CPU
        )
        mask = bias.materialize((len(level.rows), tables.numel() * BLOCK))
        at = 0
        for members, tokens, table in zip(level.members, level.tokens, level.tables, strict=True):
            seen = [int(table[token // BLOCK]) * BLOCK + token % BLOCK for token in range(tokens)]
            for row in range(at, at + members):
                assert sorted(torch.nonzero(mask[row] == 0)[:, 0].tolist()) == sorted(seen)
            at += members
