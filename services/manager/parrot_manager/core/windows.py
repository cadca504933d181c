"""The last so many numbers, and their quantiles: what is learned from them no single one can spoil."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 64
ENOUGH = 5
"""From so many numbers on, they count for more than what was assumed."""


class Window:
    """Numbers in the order they came, and in order of size."""

    __slots__ = ("_came", "_sorted", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self._came: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def enough(self) -> bool:
        """Whether they say more than a guess."""
        return len(self._sorted) >= ENOUGH

    def add(self, number: float) -> None:
        """Takes a number in; the oldest beyond the size is forgotten."""
        if len(self._came) == self.size:
            oldest = self._came.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._came.append(number)
        insort(self._sorted, number)

    def quantile(self, share: float) -> float:
        """The number that this share of them does not exceed; there must be one."""
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]

    @property
    def median(self) -> float:
        """The middle one."""
        return self.quantile(0.5)
