"""What decode attention over paged KV is, in float64 and as plainly as it can be said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def attention(
    q: npt.ArrayLike,
    memory: tuple[npt.ArrayLike, npt.ArrayLike],
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    scale: float,
) -> Array:
    """Each row's attention over its own tokens.

    Args:
        q: rows x query heads x head size.
        memory: keys and values, blocks x tokens of a block x KV heads x head size.
        tables: of each row, the blocks its tokens are in, in order.
        lengths: of each row, how many tokens it has; of none, zeros come out.
        scale: of the dot products.

    Returns:
        rows x query heads x head size.
    """
    query, key, value = (np.asarray(given, np.float64) for given in (q, *memory))
    rows, heads, size = query.shape
    group = heads // key.shape[2]
    out = np.zeros((rows, heads, size))
    for row, length in enumerate(lengths):
        blocks = list(tables[row])
        for head in range(heads if length else 0):
            k = key[blocks, :, head // group].reshape(-1, size)[:length]
            v = value[blocks, :, head // group].reshape(-1, size)[:length]
            scores = k @ query[row, head] * scale
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v / weights.sum()
    return out
