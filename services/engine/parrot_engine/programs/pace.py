"""How prefill of what is still being produced is cut, and how often a piece may be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEAST_TOKENS: Final = 8
MOST_TOKENS: Final = 64
"""A chunk while its producer's end is far. What is not prefilled when the end comes, the reader waits
for: a producer may end before it is expected to."""
BATCH_SHARE: Final = 0.02
"""Of the batch's time, what chunks may cost it beyond the prefill that has to be done anyway."""
CHUNK_COST_STEPS: Final = 0.12
"""What one more row costs the step it is in, as a share of a step that only decodes."""
LEAST_CHUNK_COST_MS: Final = 0.3


def chunk_tokens(made: int, expected: int) -> int:
    """How many tokens make a chunk, when `made` of `expected` (0: not known) have been produced."""
    left = max(0, expected - made) if expected else 0
    return max(LEAST_TOKENS, min(MOST_TOKENS, left // 4))


class Pace:
    """How often an engine's paused programs, together, may send a chunk."""

    def __init__(self, step_ms: Callable[[], float]) -> None:
        """`step_ms`: the time of a step that only decodes, lately."""
        self._step_ms = step_ms
        self._next_s = 0.0

    def take(self, now_s: float) -> bool:
        """Whether a chunk may be sent now, which then counts."""
        if now_s < self._next_s:
            return False
        cost_ms = max(LEAST_CHUNK_COST_MS, CHUNK_COST_STEPS * self._step_ms())
        self._next_s = now_s + cost_ms / 1000 / BATCH_SHARE
        return True
