"""Every choice of a run, from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A stream of choices. Parts of a run have their own: one more choice here moves nothing there."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random = Random(seed).random

    def apart(self, name: str) -> Dice:
        """The dice of a part."""
        return Dice(f"{self._seed}/{name}")

    def chance(self, of_one: float) -> bool:
        """True so often."""
        return self._random() < of_one

    def between(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both possible."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, among: Sequence[T]) -> T:
        """One of them."""
        return among[int(self._random() * len(among))]

    def some(self, among: Sequence[T], most: int) -> list[T]:
        """Up to `most` of them, in their order, each once."""
        count = self.between(0, min(most, len(among)))
        places = list(range(len(among)))
        for i in range(count):
            j = self.between(i, len(places) - 1)
            places[i], places[j] = places[j], places[i]
        return [among[place] for place in sorted(places[:count])]
