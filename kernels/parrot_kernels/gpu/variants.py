"""Which body runs for which model: tiles, stages and warps, as the compiler takes them for sm_90."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from parrot_kernels.gpu.geometry import FEW_ROWS, FILL_ROWS, TILE_ROWS, Geometry

TILE_TOKENS: Final = 64
"""Tokens of one step of the softmax: the width of the product, and the box that TMA fetches."""
OPTIONS: Final = {"enable_fp_fusion": True}
"""Of the compiler: scores are scaled and shifted in one instruction. Said, because Triton 3.10 has it off."""
_MERGED_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of `kernels.attend`.

    Both bodies, for few rows and for many, are in one kernel, so that long and short items end together: they
    take no more registers than the larger alone, as long as what needs a mask comes first.

    Attributes:
        tma: tiles are fetched by tensor descriptors, which take half the registers of addresses. They are
            made on the host, for each layer, and travel as the kernel's parameters: those made on the device
            need memory at each launch, and a fence in each program.
        ragged: each row of an item sees as many tokens as its limit says (`fill`).
    """

    geometry: Geometry
    tma: bool
    ragged: bool

    @property
    def warps(self) -> int:
        """Two groups share the tokens of a fill, which computes more than it reads."""
        return 8 if self.ragged else 4

    @property
    def programs_per_processor(self) -> int:
        """As many as fit: one reads while the other begins, ends or computes."""
        return 1 if self.ragged else 2

    def constants(self) -> dict[str, Any]:
        """What `kernels.attend` is compiled for."""
        made = self.geometry
        return {
            "KV_HEADS": made.kv_heads,
            "GROUP": made.group,
            "SIZE": made.head_size,
            "BLOCK": made.block_tokens,
            "FEW": FEW_ROWS,
            "MANY": FILL_ROWS if self.ragged else TILE_ROWS,
            "TILE": TILE_TOKENS,
            "STAGES": self._stages(),
            "TMA": self.tma,
            "RAGGED": self.ragged,
        }

    def merge_constants(self) -> dict[str, Any]:
        """What `kernels.merge` is compiled for."""
        return {"SIZE": self.geometry.head_size, "RESULTS": _MERGED_AT_ONCE}

    def _stages(self) -> int:
        # The first two are the block's number on its way: two tiles are read ahead, or three small ones.
        small = self.geometry.kv_token_bytes <= 2 * TILE_TOKENS * 2
        return 7 if small else 5


def boxes_fit(geometry: Geometry, strides: tuple[int, ...], address: int) -> bool:
    """Whether TMA can fetch tiles: blocks are whole tiles, and each block, token and head begins at 16 bytes.

    Args:
        strides: of blocks, tokens and heads, in numbers.
        address: of the memory.
    """
    number_bytes = geometry.kv_token_bytes // (2 * geometry.head_size)
    aligned = all(stride * number_bytes % 16 == 0 for stride in strides) and address % 16 == 0
    return geometry.block_tokens % TILE_TOKENS == 0 and aligned
