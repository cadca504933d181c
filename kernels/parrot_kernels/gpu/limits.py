"""The least time an attention step can take: what must be read, written and computed, on given hardware.

It is one layer's. KV is read once wherever rows share it; queries are read and outputs written once; partial
results stay in the cache and count nothing. Products of bfloat16 are counted at their dense speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_kernels.gpu.geometry import Geometry
from parrot_kernels.plan import Plan

_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Hardware:
    """How fast memory is copied, and how fast products are made.

    Attributes:
        bytes_per_s: measured, both directions counted; what a data sheet says is never reached.
        flops_per_s: of dense bfloat16 products.
    """

    bytes_per_s: float
    flops_per_s: float


H200: Final = Hardware(bytes_per_s=4.3e12, flops_per_s=790e12)
"""What one copies and multiplies at; pass `bytes_per_s` as measured where it can be."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do.

    Attributes:
        distinct_tokens: whose KV is in memory, each counted once however many rows read it.
        seen_tokens: the sum of rows' lengths.
        table_blocks: numbers of the block tables that are read.
    """

    rows: int
    distinct_tokens: int
    seen_tokens: int
    table_blocks: int = 0

    @classmethod
    def of_groups(cls, rows: int, prefix_tokens: int, suffix_tokens: int, groups: int = 1) -> Work:
        """So many groups of rows with a prefix each, and every row with a suffix of its own."""
        return cls(
            rows, groups * prefix_tokens + rows * suffix_tokens, rows * (prefix_tokens + suffix_tokens)
        )

    @classmethod
    def of_plan(cls, plan: Plan) -> Work:
        """What a plan reads; nodes that are cut into several tiles of rows count once."""
        flat = plan.tables.reshape(-1)
        read: dict[int, int] = {}
        for offset, tokens in plan.items[:, 3:5].tolist():
            for at in range(0, tokens, plan.block_tokens):
                block = int(flat[offset + at // plan.block_tokens])
                read[block] = max(read.get(block, 0), min(plan.block_tokens, tokens - at))
        seen = int((plan.items[:, 2].astype(int) * plan.items[:, 4]).sum())
        return cls(len(plan.partial_begin) - 1, sum(read.values()), seen, len(read))

    @property
    def unshared(self) -> Work:
        """The same rows, reading for themselves."""
        return Work(self.rows, self.seen_tokens, self.seen_tokens, self.table_blocks)


def step_bytes(geometry: Geometry, work: Work) -> float:
    """Read and written: KV, queries and outputs, block tables."""
    kv_bytes = geometry.kv_heads * geometry.kv_token_bytes * work.distinct_tokens
    return kv_bytes + 2 * geometry.query_row_bytes * work.rows + _NUMBER_BYTES * work.table_blocks


def step_flops(geometry: Geometry, work: Work) -> float:
    """Of both products, over what each row sees; a multiplication and an addition are two."""
    return 4.0 * geometry.query_heads * geometry.head_size * work.seen_tokens


def limit_us(geometry: Geometry, work: Work, hardware: Hardware = H200) -> float:
    """The least time of one layer's step: reading or computing, whichever takes longer."""
    reading = step_bytes(geometry, work) / hardware.bytes_per_s
    return 1e6 * max(reading, step_flops(geometry, work) / hardware.flops_per_s)
