"""A memory that forgets what is oldest."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

KEPT: Final = 4096


class Memory(Generic[K, V]):
    """The last `KEPT` things that were put in."""

    def __init__(self) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> None:
        """Remembers it as the newest."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def get(self, key: K) -> V | None:
        """It, unless it was forgotten or never put in."""
        return self._kept.get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._kept
