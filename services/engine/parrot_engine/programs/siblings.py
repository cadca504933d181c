"""Programs that read one stream behind one and the same prefix: one of them prefills ahead, for all.

The coders who all read the architect's plan as it is written would prefill it once each, all beside the
architect's own steps. What one of them has computed the engine's prefix cache has for the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Leads(Protocol):
    """Asks whether a program is the one that prefills, now: the one before it may have gone."""

    def __call__(self) -> bool: ...


class Siblings:
    """Who prefills what, of an engine's programs."""

    def __init__(self) -> None:
        self._leaders: dict[Hashable, object] = {}

    @contextmanager
    def reading(self, *stream: Hashable) -> Iterator[Leads]:
        """While a program reads a stream, named by all that its tokens and their KV depend on."""
        owner = object()

        def leads() -> bool:
            return self._leaders.setdefault(stream, owner) is owner

        try:
            yield leads
        finally:
            if self._leaders.get(stream) is owner:
                del self._leaders[stream]
