"""The same attention by xFormers' kernels, which know nothing of ours: to check against, and to compare with.

Each level of the forest is one call of `memory_efficient_attention_partial` over the paged KV, in which a
node is a sequence whose queries are all of its rows; `merge_attentions` puts the levels together, as in
Hydragen (https://arxiv.org/abs/2402.05099). The forest is found here, and not by the planner.

xFormers has no such kernel for CPUs: its partial attention over paged KV is written in Triton, for NVIDIA
GPUs from compute capability 8.0 on. It comes with the extra `gpu`. Its kernels up to 0.0.35 are written with
block pointers, which Triton has no longer from 3.9 on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

LAST_WITH_BLOCK_POINTERS: Final = (0, 0, 35)
WITHOUT_BLOCK_POINTERS: Final = (3, 9)

Ints = npt.NDArray[np.int32]


class XformersError(RuntimeError):
    """xFormers can't be used here; says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Node:
    """KV that the same rows read: so many tokens, from a block of the first row's table on."""

    rows: tuple[int, ...]
    begin_blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes none of which is within another.

    Attributes:
        rows: those of one node side by side.
        members: of each node, how many rows it has.
        tokens: of each node.
        tables: nodes x blocks.
    """

    rows: Ints
    members: tuple[int, ...]
    tokens: tuple[int, ...]
    tables: Ints


def levels(tables: Ints, lengths: Ints, block_tokens: int) -> list[Level]:
    """The forest of rows that begin with the same full blocks, the roots first.

    Args:
        tables: rows x blocks.
        lengths: of each row, tokens; rows of none are on no level.
    """
    found: dict[int, list[Node]] = defaultdict(list)
    busy = tuple(int(row) for row in np.flatnonzero(lengths))
    for depth, node in _nodes(busy, tables, lengths, block_tokens):
        found[depth].append(node)
    return [_level(found[depth], tables, block_tokens) for depth in sorted(found)]


def _nodes(
    busy: tuple[int, ...], tables: Ints, lengths: Ints, block_tokens: int
) -> Iterator[tuple[int, Node]]:
    full = lengths // block_tokens
    todo = [(0, 0, busy)]
    while todo:
        depth, begin, rows = todo.pop()
        parts: dict[tuple[bool, int], list[int]] = defaultdict(list)
        for row in rows:
            # A block that is not full is its row's own.
            parts[(True, int(tables[row, begin])) if full[row] > begin else (False, row)].append(row)
        for part in parts.values():
            if len(part) == 1:
                tokens = int(lengths[part[0]]) - begin * block_tokens
                yield depth, Node((part[0],), begin, tokens)
                continue
            same = (tables[part, begin:] == tables[part[0], begin:]).all(axis=0)
            most = int(full[part].min()) - begin
            end = begin + (most if same[:most].all() else int(same.argmin()))
            yield depth, Node(tuple(part), begin, (end - begin) * block_tokens)
            longer = tuple(row for row in part if lengths[row] > end * block_tokens)
            if longer:
                todo.append((depth + 1, end, longer))


def _level(nodes: Sequence[Node], tables: Ints, block_tokens: int) -> Level:
    blocks = [-(-node.tokens // block_tokens) for node in nodes]
    made = np.zeros((len(nodes), max(blocks)), np.int32)
    for place, (node, count) in enumerate(zip(nodes, blocks, strict=True)):
        made[place, :count] = tables[node.rows[0], node.begin_blocks : node.begin_blocks + count]
    return Level(
        np.array([row for node in nodes for row in node.rows], np.int32),
        tuple(len(node.rows) for node in nodes),
        tuple(node.tokens for node in nodes),
        made,
    )


class Kernels(Protocol):
    """What is asked of xFormers, for G KV heads of H query heads each."""

    def prepare(self, level: Level, block_tokens: int, device: torch.device) -> Any:
        """A level's paged bias, on the device."""

    def partial(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and the natural log-sum-exp of one level.

        Args:
            query: 1 x rows x G x H x head size.
            key, value: 1 x tokens of the whole memory x G x H x head size.

        Returns:
            outputs like the queries, in float32; and 1 x G x H x rows, in float32 or float64.
        """

    def merge(self, outputs: torch.Tensor, sums: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """All levels' outputs, levels x ..., and their log-sum-exp, levels x ..., as one output."""


def check_versions(xformers: str, triton: str) -> None:
    """Checks that Triton still has what xFormers' kernels are written with.

    Raises:
        XformersError: it hasn't.
    """
    if _numbers(xformers) <= LAST_WITH_BLOCK_POINTERS and _numbers(triton) >= WITHOUT_BLOCK_POINTERS:
        raise XformersError(
            f"xFormers {xformers} needs block pointers, which Triton {triton} has no longer; "
            "install a Triton before 3.9, or a later xFormers"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


class Xformers:
    """xFormers 0.0.35's kernels, by its own names."""

    def __init__(self, device: torch.device) -> None:
        """Imports xFormers.

        Raises:
            XformersError: the device is no GPU, xFormers isn't installed, or it doesn't fit Triton.
        """
        if device.type != "cuda":
            raise XformersError(
                f"xFormers' partial attention needs a GPU, and this is {device.type}: its only kernels over "
                "paged KV are written in Triton for NVIDIA GPUs of compute capability 8.0 and later"
            )
        try:
            import triton
            import xformers
            from xformers.ops import fmha
            from xformers.ops.fmha import attn_bias
        except ImportError as error:
            raise XformersError(
                f"xFormers can't be imported ({error}); install it with `pip install 'parrot-serve[gpu]'`"
            ) from error
        check_versions(xformers.__version__, triton.__version__)
        self._fmha, self._bias = fmha, attn_bias.PagedBlockDiagonalPaddedKeysMask
        self._op = fmha.triton_splitk.FwOp

    def prepare(self, level: Level, block_tokens: int, device: torch.device) -> Any:
        tables = torch.from_numpy(level.tables).to(device)
        return self._bias.from_seqlens(level.members, level.tokens, tables, block_tokens, device=device)

    def partial(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, sums = self._fmha.memory_efficient_attention_partial(
            query, key, value, attn_bias=bias, scale=scale, op=self._op
        )
        return outputs, sums

    def merge(self, outputs: torch.Tensor, sums: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        merged, _ = self._fmha.merge_attentions(outputs, sums, write_lse=False, output_dtype=dtype)
        return torch.as_tensor(merged)


class XformersForest:
    """Attention of one step's rows, prepared once; `attend` may be captured in a CUDA graph."""

    def __init__(
        self,
        tables: Ints,
        lengths: Ints,
        block_tokens: int,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        """Finds the forest.

        Args:
            tables: rows x blocks.
            lengths: of each row, tokens.
            block_tokens: a multiple of 64.
            kernels: xFormers' own, when none are given.

        Raises:
            XformersError: xFormers can't be used here.
        """
        self._kernels = kernels or Xformers(device)
        self._rows = len(lengths)
        self._busy = torch.from_numpy(np.flatnonzero(lengths)).to(device)
        self._levels = [
            (
                torch.from_numpy(level.rows.astype(np.int64)).to(device),
                self._kernels.prepare(level, block_tokens, device),
            )
            for level in levels(tables, lengths, block_tokens)
        ]

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, scale: float
    ) -> None:
        """Writes the attention of every row that has tokens; other rows are left as they are.

        Args:
            query: rows x query heads x head size, float16 or bfloat16; `out` is like it.
            key, value: blocks x tokens of a block x KV heads x head size, tokens evenly apart.

        Raises:
            XformersError: the KV memory is laid out otherwise.
        """
        if not self._levels:
            return
        _, heads, size = query.shape
        kv_heads = key.shape[2]
        grouped = query.view(1, self._rows, kv_heads, heads // kv_heads, size)
        keys, values = (_in_a_row(each, heads // kv_heads) for each in (key, value))
        outputs = grouped.new_zeros(len(self._levels), *grouped.shape, dtype=torch.float32)
        sums = query.new_full(
            (len(self._levels), 1, kv_heads, heads // kv_heads, self._rows), -torch.inf, dtype=torch.float32
        )
        for place, (rows, bias) in enumerate(self._levels):
            output, total = self._kernels.partial(grouped[:, rows], keys, values, bias, scale)
            outputs[place].index_copy_(1, rows, output)
            sums[place].index_copy_(3, rows, total.float())
        # Rows of no tokens have nothing on any level, which is no number when it is merged.
        levels_of_rows = outputs.index_select(2, self._busy), sums.index_select(4, self._busy)
        merged = self._kernels.merge(*levels_of_rows, out.dtype)
        out.index_copy_(0, self._busy, merged.reshape(-1, heads, size))


def _in_a_row(memory: torch.Tensor, group: int) -> torch.Tensor:
    """Blocks x tokens x KV heads x dims as one sequence, each KV head seen by all its query heads."""
    blocks, tokens, heads, size = memory.shape
    if memory.stride(0) != tokens * memory.stride(1):
        raise XformersError(
            f"KV memory with strides {memory.stride()}: xFormers wants tokens evenly apart, across blocks too"
        )
    flat = memory.as_strided(
        (1, blocks * tokens, heads, 1, size),
        (0, memory.stride(1), memory.stride(2), memory.stride(2), memory.stride(3)),
        memory.storage_offset(),
    )
    return flat.expand(1, -1, heads, group, size)
