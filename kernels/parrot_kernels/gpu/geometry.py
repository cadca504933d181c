"""What the kernels are made for: heads, types and blocks of one model, and what follows for the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_kernels.plan import Capacity, Costs, Shape

TILE_ROWS: Final = 64
"""Query rows of an item, those of one KV head's group counted each: what a warp group multiplies at once."""
FILL_ROWS: Final = 128
"""The same of a fill: two warp groups."""
FEW_ROWS: Final = 16
"""Items of so many have a body of their own, with the smallest product there is."""
HEAD_SIZES: Final = (64, 128)

_RIDGE_ROWS: Final = 184
"""So many rows of bfloat16 are computed while a token is read: 790 TFLOP/s over 4.3 TB/s."""
_ITEM_TOKENS: Final = 64
"""Fetching an item, its queries and the first tokens, before its reading overlaps anything, in tokens."""
_CACHE_SPEED: Final = 2.0
"""Partial results stay in the L2 cache, which is that much faster than the memory."""


class AttentionError(ValueError):
    """Tensors, types or a machine that can't be worked on; says why."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model's attention.

    Attributes:
        head_size: 64 or 128.
        block_tokens: of a KV block, a multiple of 16; multiples of 64 are read by TMA.
        query_type: of queries and output: `float16`, `bfloat16` or `float32`.
        kv_type: the same type, or `float8_e4m3fn`.
    """

    query_heads: int
    kv_heads: int
    head_size: int
    block_tokens: int
    query_type: str
    kv_type: str

    def __post_init__(self) -> None:
        """Refuses what no kernel is made for.

        Raises:
            AttentionError: says which of the attributes, and what they may be.
        """
        if self.kv_heads < 1 or self.query_heads < 1 or self.query_heads % self.kv_heads:
            raise AttentionError(
                f"{self.query_heads} query heads, {self.kv_heads} KV heads: whole groups, one at least"
            )
        if self.group > TILE_ROWS:
            raise AttentionError(f"{self.group} query heads of one KV head: {TILE_ROWS} at most")
        if self.head_size not in HEAD_SIZES:
            raise AttentionError(f"heads of {self.head_size} dims: they are of {HEAD_SIZES}")
        if self.block_tokens < 1 or self.block_tokens % 16:
            raise AttentionError(f"blocks of {self.block_tokens} tokens: a multiple of 16")
        if self.query_type not in _BYTES or self.query_type == "float8_e4m3fn":
            raise AttentionError(f"queries of {self.query_type}: float16, bfloat16 or float32")
        if self.kv_type not in (self.query_type, "float8_e4m3fn"):
            raise AttentionError(f"KV of {self.kv_type}: {self.query_type} as the queries, or float8_e4m3fn")

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def kv_token_bytes(self) -> int:
        """A token's key and value of one KV head."""
        return 2 * self.head_size * _BYTES[self.kv_type]

    @property
    def query_row_bytes(self) -> int:
        """One row's queries, all heads; its output has as many."""
        return self.query_heads * self.head_size * _BYTES[self.query_type]

    @property
    def partial_row_bytes(self) -> int:
        """One partial result: sums and log-sum-exp in float32, all heads."""
        return self.query_heads * (self.head_size + 1) * 4

    def shape(self, programs: int) -> Shape:
        """What the planner plans for, so many programs taking items at once (`GpuAttention.programs`)."""
        return Shape(self.block_tokens, self.kv_heads, self.group, TILE_ROWS, programs)

    def costs(self) -> Costs:
        """What work costs, in the time that one token's KV of one head takes to be read from memory."""
        partial_bytes = 2 * self.partial_row_bytes / self.kv_heads
        return Costs(
            row=1 / _RIDGE_ROWS, item=_ITEM_TOKENS, partial=partial_bytes / self.kv_token_bytes / _CACHE_SPEED
        )

    def capacity(self, rows: int) -> Capacity:
        """Lists for so many rows: enough for what plans of them have, and their pieces become larger beyond.

        Partial results take the most: 135 MB for 256 rows of 32 heads of 128 dims.
        """
        return Capacity(rows, items=16 * rows + 1024, row_index=16 * rows + 4096, partials=16 * rows + 4096)

    def fill_capacity(self, rows: int) -> Capacity:
        """The same for fills of so many new tokens."""
        return Capacity(rows, items=4 * rows + 1024, row_index=4 * rows + 1024, partials=2 * rows + 1024)


_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
