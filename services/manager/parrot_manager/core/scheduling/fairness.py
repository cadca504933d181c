"""Between tenants: who was served how much, and who goes first because of it.

Start-time fair queueing: each tenant has a clock that runs with the service it gets. The one that is
furthest behind may always go; the others while they are no more than a burst ahead of it. A tenant that
comes, or comes back, starts where those are who wait: it saved nothing up by being away.
"""

from __future__ import annotations

from statistics import median
from typing import Final

REMEMBERED: Final = 10_000
"""Tenants whose clocks are kept; when there are more, the half that was served least starts anew."""


class Fairness:
    """The tenants' clocks, in tokens of service."""

    def __init__(self) -> None:
        self._clocks: dict[str, float] = {}
        self._floor = 0.0

    def __len__(self) -> int:
        return len(self._clocks)

    def clock(self, tenant: str) -> float:
        """How much a tenant was served, in the measure of those who wait."""
        return max(self._floor, self._clocks.get(tenant, 0.0))

    def charge(self, tenant: str, tokens: float) -> None:
        """A tenant was served; negative: less than it was charged for."""
        self._clocks[tenant] = self.clock(tenant) + tokens
        if len(self._clocks) > REMEMBERED:
            # The floor moves with those who wait alone: of tenants that come once each, it would keep all.
            self.advance(median(self._clocks.values()))
            self._clocks = {name: clock for name, clock in self._clocks.items() if clock > self._floor}

    def advance(self, least: float) -> None:
        """The waiting tenant that is furthest behind stands here."""
        self._floor = max(self._floor, least)
