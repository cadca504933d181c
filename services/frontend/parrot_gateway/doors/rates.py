"""A tenant's requests a second, over all gateways.

A gateway takes some of a tenant's requests in advance, so that most ask nobody. What it has not used
within a second it gives back when it next takes some; what a gateway had that died is made up by the
rate itself, within that second.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from parrot_runtime import errors
from parrot_runtime.errors import Fault

BLOCKS_A_SECOND: Final = 10
"""A gateway takes as many requests in advance as a tenant has in a tenth of a second."""
HELD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Granted:
    """Requests that may be made now; when there are none, how long until there is one."""

    count: int
    retry_after_ms: int = 0


Lease = Callable[[str, int, int], Awaitable[Granted]]
"""Asks a manager: tenant, how many are wanted, how many are given back."""


@dataclass(slots=True)
class _Allowance:
    left: int = 0
    taken_at_s: float = 0.0
    none_until_s: float = 0.0
    failed_at_s: float = -math.inf
    failure: Fault | None = None
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Rates:
    """What this gateway has taken of each tenant's rate."""

    def __init__(self, lease: Lease, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease
        self._clock = clock
        self._tenants: dict[str, _Allowance] = {}

    async def pass_one(self, tenant: str, per_second: int) -> None:
        """Lets a request pass.

        Raises:
            Fault: `rate_limited`; `unavailable`, when no manager can be asked.
        """
        if not per_second:
            return
        allowance = self._tenants.setdefault(tenant, _Allowance())
        if not self._use(allowance):
            began_s = self._clock()
            async with allowance.taking:
                # Somebody may have taken some meanwhile.
                while not self._use(allowance):
                    # What failed while this one waited failed for it too: they don't wait one after another.
                    if allowance.failure is not None and allowance.failed_at_s >= began_s:
                        raise allowance.failure
                    await self._take(tenant, allowance, per_second)

    def _use(self, allowance: _Allowance) -> bool:
        fresh = self._clock() < allowance.taken_at_s + HELD_S
        if not fresh or not allowance.left:
            return False
        allowance.left -= 1
        return True

    async def _take(self, tenant: str, allowance: _Allowance, per_second: int) -> None:
        wait_s = allowance.none_until_s - self._clock()
        if wait_s > 0:
            raise _too_many(per_second, math.ceil(wait_s * 1000))
        returned, allowance.left = allowance.left, 0
        try:
            granted = await self._lease(tenant, max(1, per_second // BLOCKS_A_SECOND), returned)
        except Fault as fault:
            allowance.failure, allowance.failed_at_s = fault, self._clock()
            raise
        now_s = self._clock()
        allowance.left, allowance.taken_at_s = granted.count, now_s
        if not granted.count:
            allowance.none_until_s = now_s + granted.retry_after_ms / 1000
            raise _too_many(per_second, granted.retry_after_ms)


def _too_many(per_second: int, retry_after_ms: int) -> Fault:
    return Fault(
        errors.RATE_LIMITED,
        f"the quota is {per_second:,} requests a second, over all clients of the tenant; send fewer",
        retry_after_ms=max(1, retry_after_ms),
    )
