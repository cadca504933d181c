"""How many calls a tenant has unfinished, and how many more are taken."""

from __future__ import annotations

from collections import Counter

from parrot_manager.core.scheduling.policies import Limits
from parrot_runtime import errors
from parrot_runtime.errors import Fault


class Quotas:
    """Counts calls from when they are first heard of until they are forgotten."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tenants: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tenants)

    def add(self, key: tuple[str, str], tenant: str) -> None:
        """A call is there."""
        if key not in self._tenants:
            self._tenants[key] = tenant
            self._counts[tenant] += 1

    def remove(self, key: tuple[str, str]) -> None:
        """A call is there no more."""
        tenant = self._tenants.pop(key, None)
        if tenant is not None:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def refuse(self, tenant: str, new_calls: int) -> Fault | None:
        """Why so many more can't be taken; None: they can."""
        limits = self._limits
        mine, all_calls = self._counts[tenant], len(self._tenants)
        if limits.tenant_calls and mine + new_calls > limits.tenant_calls:
            return _full(f"you have {mine:,} unfinished calls", new_calls, limits.tenant_calls)
        if limits.total_calls and all_calls + new_calls > limits.total_calls:
            return _full(f"{all_calls:,} calls wait here", new_calls, limits.total_calls)
        return None


def _full(what: str, new_calls: int, limit: int) -> Fault:
    return Fault(
        errors.QUEUE_FULL,
        f"{what}, and {new_calls:,} more would exceed the limit of {limit:,}; "
        "wait until some have finished, then send these again",
    )
