"""A decode step on a GPU: rows in groups, each group with one prefix, over several layers' KV memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

BLOCK_TOKENS = 64
PREFIX_BLOCKS = 94
"""Of the prefixes: 6,016 tokens, the paper's 6,000 in whole blocks."""
HEAD_SIZE = 128
CACHES = 4
"""Layers take turns over so many times what the L2 cache holds."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is decoded.

    Attributes:
        heads: query heads and KV heads, of 128 dims.
        suffix: each row's own tokens.
        groups: of rows with one prefix.
    """

    heads: tuple[int, int]
    rows: int
    suffix: int
    groups: int

    @property
    def label(self) -> str:
        """As metrics are named."""
        query, kv = self.heads
        kind = f"mha{query}" if query == kv else f"gqa{query}_{kv}"
        return f"{kind}_b{self.rows}_s{self.suffix}_g{self.groups}"

    @property
    def kv_tokens(self) -> int:
        """Tokens of a layer's KV that there are, what is shared counted once."""
        return self.groups * PREFIX_BLOCKS * BLOCK_TOKENS + self.rows * self.suffix

    @property
    def kv_token_bytes(self) -> int:
        """A token's key and value in bfloat16, all KV heads."""
        return self.heads[1] * HEAD_SIZE * 4


class Batch:
    """The rows of a setting, in bfloat16; KV as vLLM lays it out: keys and values of a token side by side.

    Attributes:
        tables: rows x blocks, on the host; `device_tables` are the same.
        keys, values: of each layer, blocks x tokens x KV heads x dims.
        queries: of each layer, rows x query heads x dims.
        out: of the layer that ran last.
    """

    def __init__(self, setting: Setting, device: torch.device, cache_bytes: int) -> None:
        self.setting, self.device, self.scale = setting, device, HEAD_SIZE**-0.5
        self.tables, blocks = _tables(setting)
        self.lengths: Ints = np.full(setting.rows, PREFIX_BLOCKS * BLOCK_TOKENS + setting.suffix, np.int32)
        self.device_tables = torch.from_numpy(self.tables).to(device)
        self.device_lengths = torch.from_numpy(self.lengths).to(device)
        layer_bytes = setting.kv_tokens * setting.kv_token_bytes
        self.layers = max(2, min(32, -(-CACHES * cache_bytes // layer_bytes)))
        torch.manual_seed(1)
        query, kv = setting.heads
        shape = (blocks, BLOCK_TOKENS, kv, 2 * HEAD_SIZE)
        memory = [self._random(*shape) for _ in range(self.layers)]
        self.keys, self.values = ([each.chunk(2, -1)[half] for each in memory] for half in (0, 1))
        self.queries = [self._random(setting.rows, query, HEAD_SIZE) for _ in range(self.layers)]
        self.out = torch.empty_like(self.queries[0])

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=self.device)


def _tables(setting: Setting) -> tuple[Ints, int]:
    """Block tables, rows of one group side by side, blocks anywhere; and how many blocks there are."""
    own = -(-setting.suffix // BLOCK_TOKENS)
    shared = setting.groups * PREFIX_BLOCKS
    blocks = shared + setting.rows * own
    numbers = np.random.default_rng(1).permutation(blocks).astype(np.int32)
    prefixes = numbers[:shared].reshape(setting.groups, PREFIX_BLOCKS)
    group = np.arange(setting.rows) * setting.groups // setting.rows
    return np.hstack([prefixes[group], numbers[shared:].reshape(setting.rows, own)]), blocks
