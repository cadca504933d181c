"""Random forests of sequences over paged KV: nested prefixes, ragged tails, lone members, empty suffixes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Forest:
    """Rows and where their KV stands.

    Attributes:
        tables: rows x blocks; what lies behind a row's last block is a block that nobody owns.
        blocks: of the memory, block 0 among them, which is nobody's.
    """

    tables: Ints
    lengths: Ints
    block_tokens: int
    blocks: int

    def shuffled(self, source: random.Random) -> tuple[Forest, list[int]]:
        """The same rows in another order; which row each was."""
        order = list(range(len(self.lengths)))
        source.shuffle(order)
        return Forest(self.tables[order], self.lengths[order], self.block_tokens, self.blocks), order


def random_forest(source: random.Random, rows: int, block_tokens: int, depth: int = 3) -> Forest:
    """A forest of so many rows: each begins at one of the nodes that were made, or by itself."""
    numbers = iter(source.sample(range(1, 4_000), 3_999))
    prefixes: list[list[int]] = [[]]
    for _ in range(source.randint(0, 2 * depth)):
        parent = source.choice(prefixes)
        prefixes.append([*parent, *(next(numbers) for _ in range(source.choice((1, 2, 3, 7))))])
    tables, lengths = [], []
    for _ in range(rows):
        prefix = source.choice(prefixes)
        suffix = source.choice((0, 0, 1, 2, 5)) if prefix else source.choice((1, 2, 6))
        own = [next(numbers) for _ in range(suffix)]
        full = len(prefix) * block_tokens
        # A row ends anywhere in its last block, or has nothing but what it shares.
        lengths.append(full + (source.randint(1, suffix * block_tokens) if suffix else 0))
        tables.append([*prefix, *own])
    if source.random() < 0.3 and rows > 1:
        lengths[source.randrange(rows)] = 0
    width = max(map(len, tables)) + 1
    padded = [[*table, *[0] * (width - len(table))] for table in tables]
    return Forest(np.array(padded, np.int32), np.array(lengths, np.int32), block_tokens, 4_000)
