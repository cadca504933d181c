"""A tenant with limits: what of them it has is what the store says, whatever goes wrong meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parrot_manager.core.blocks.definitions import Loop
from parrot_manager.core.tenants import Taken, TenantLimits
from parrot_runtime.ids import SHARDS
from tests.simulation.reader import TENANT, at_once
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from parrot_manager.store.memory import MemoryStore
    from tests.simulation.apps import PlannedApp, PlannedBatch
    from tests.simulation.dice import Dice

LIMITED = 0.5
TOKENS = (200_000, 2_000_000)
PER_MINUTE = (400_000, 4_000_000)
EVERY = 16
"""All is counted anew every so many writes."""


class Quotas:
    """Some worlds' tenant has limits; those without are as they were."""

    def __init__(self, dice: Dice, apps: list[PlannedApp], rows: MemoryStore) -> None:
        self._rows = rows
        self._writes = 0
        self.limits = _draw(dice, apps) if dice.chance(LIMITED) else None
        if self.limits is not None:
            at_once(rows.tenants.set_limits(TENANT, self.limits))

    def check(self) -> None:
        """After each write: nothing is taken beyond the limits."""
        if self.limits is None:
            return
        taken = self._taken()
        fits = (
            taken.sessions <= self.limits.sessions
            and taken.calls <= self.limits.calls
            and taken.tokens <= self.limits.tokens
        )
        promise(fits, "quota exceeded", f"{taken} of {self.limits}")
        self._writes += 1
        if self._writes % EVERY == 0:
            records = at_once(self._rows.load_live(range(SHARDS), 0))
            unfinished = sum(not call.ended_ms for record in records for call in record.calls)
            promise(unfinished <= taken.calls, "quota miscounted", f"{unfinished} calls of {taken.calls}")
            promise(not at_once(self._rows.tenants.recount()), "quota miscounted", f"{taken}")

    def check_rest(self) -> None:
        """At the end: all is given back. (A session may be open yet, on its way to another manager.)"""
        if self.limits is None:
            return
        taken = self._taken()
        wrong = at_once(self._rows.tenants.recount())
        promise(not wrong, "quota miscounted", f"{taken}")
        promise(not taken.calls and not taken.tokens, "quota not given back", f"{taken}")

    def _taken(self) -> Taken:
        tenant = at_once(self._rows.tenants.get(TENANT))
        assert tenant is not None
        return tenant.taken


def _draw(dice: Dice, apps: list[PlannedApp]) -> TenantLimits:
    """So little that batches wait for one another, and enough for each alone."""
    largest = max((_calls_of(batch) for app in apps for batch in app.batches), default=1)
    return TenantLimits(
        sessions=len(apps),
        calls=largest + dice.between(0, largest // 2),
        tokens=dice.between(*TOKENS),
        tokens_per_minute=dice.between(*PER_MINUTE),
    )


def _calls_of(batch: PlannedBatch) -> int:
    """The calls a batch reserves."""
    plans = [block.plan for block in batch.blocks()]
    at_once = [len(plan.body) * (1 if isinstance(plan, Loop) else plan.instances) for plan in plans]
    return max(1, len(batch.calls()) + sum(at_once))
