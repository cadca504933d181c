"""How prefill of what is still being produced is cut, and how often a piece may be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


LAST_LEFT_TOKENS: Final = (3, 4)
"""What a producer has left when the last chunk is sent, however short that is. A chunk is computed two
steps later, so one that is sent after it would still be under way at the producer's end."""
QUIET_TOKENS: Final = 6
"""From so many left on nothing but that chunk is sent."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What may be computed now.

    Attributes:
        tokens: no less than so many.
        at_once: whatever the pace; what it takes of the batch, later ones wait longer for.
    """

    tokens: int
    at_once: bool = False


def next_chunk(made: int, expected: int) -> Chunk | None:
    """The chunk that may be sent when `made` of `expected` tokens (0: not known) have been produced."""
    left = expected - made
    if expected and 0 <= left <= QUIET_TOKENS:
        return Chunk(1, at_once=True) if left in LAST_LEFT_TOKENS else None
    return Chunk(max(LEAST_TOKENS, min(MOST_TOKENS, left // 4)))


class Pace:
    """How often an engine's paused programs, together, may send a chunk."""

    def __init__(self, step_ms: Callable[[], float]) -> None:
        """`step_ms`: the time of a step that only decodes, lately."""
        self._step_ms = step_ms
        self._next_s = 0.0

    def take(self, now_s: float, *, at_once: bool = False) -> bool:
        """Whether a chunk may be sent now, which then counts."""
        if now_s < self._next_s and not at_once:
            return False
        cost_ms = max(LEAST_CHUNK_COST_MS, CHUNK_COST_STEPS * self._step_ms())
        self._next_s = max(now_s, self._next_s) + cost_ms / 1000 / BATCH_SHARE
        return True
