"""Tenants in memory, by a clock that is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parrot_manager.core.model import VariableState
from parrot_manager.core.reservations import used_tokens
from parrot_manager.core.tenants import MINUTE_S, Movement, Taken, Tenant, TenantLimits, refusal
from parrot_manager.store.tenants import BURST_S, ApiKey, RequestLease, Tenants, same_key

if TYPE_CHECKING:
    from parrot_manager.store.kept import KeptSession


@dataclass(slots=True)
class _Kept:
    tenant: Tenant
    tokens_at_s: float
    requests: float
    requests_at_s: float


class MemoryTenants(Tenants):
    """Keeps everything in dictionaries; nothing awaits."""

    def __init__(self, clock: Callable[[], float], sessions: Mapping[str, KeptSession]) -> None:
        self._clock = clock
        self._sessions = sessions
        self._keys: dict[str, ApiKey] = {}
        self._tenants: dict[str, _Kept] = {}

    def has_limits(self, name: str) -> bool:
        """Whether what a tenant has is counted."""
        return name in self._tenants

    def take(self, name: str, movement: Movement) -> None:
        """Takes a share of what a tenant may have.

        Raises:
            Fault: `quota_exceeded`, `too_large`.
        """
        tenant = self._now(name)
        fault = refusal(tenant, movement) if tenant is not None else None
        if fault is not None:
            raise fault
        self.move(name, movement)

    def move(self, name: str, movement: Movement) -> None:
        """Counts what is taken or given back, whether or not it fits."""
        tenant = self._now(name)
        if tenant is None:
            return
        taken, rate = tenant.taken, tenant.limits.tokens_per_minute
        moved = Taken(
            max(0, taken.sessions + movement.sessions),
            max(0, taken.calls + movement.calls),
            max(0, taken.tokens + movement.tokens),
            max(0, taken.stored_bytes + movement.stored_bytes),
            min(rate, taken.token_budget - movement.spent_tokens) if rate else 0.0,
        )
        kept = self._tenants[name]
        kept.tenant, kept.tokens_at_s = replace(tenant, taken=moved), self._clock()

    async def add_key(self, key: ApiKey) -> ApiKey:
        return same_key(self._keys.setdefault(key.id, key), key)

    async def find_key(self, key_id: str) -> ApiKey | None:
        return self._keys.get(key_id)

    async def list_keys(self, tenant: str) -> list[ApiKey]:
        found = [key for key in self._keys.values() if tenant in {"", key.tenant}]
        return sorted(found, key=lambda key: (key.created_ms, key.id))

    async def revoke_key(self, key_id: str, now_ms: int) -> ApiKey | None:
        known = self._keys.get(key_id)
        if known is not None and not known.revoked_ms:
            known = self._keys[key_id] = replace(known, revoked_ms=now_ms)
        return known

    async def set_limits(self, name: str, limits: TenantLimits | None) -> Tenant | None:
        known, now_s = self._tenants.get(name), self._clock()
        if limits is None:
            self._tenants.pop(name, None)
            return None
        requests = float(limits.requests_per_second)
        if known is not None and known.tenant.limits.tokens_per_minute:
            left = self._left(known)
        else:
            left = float(limits.tokens_per_minute)
        if known is not None:
            requests = min(requests, known.requests)
        taken = replace(self._counted(name), token_budget=min(left, limits.tokens_per_minute))
        self._tenants[name] = _Kept(Tenant(name, limits, taken), now_s, requests, now_s)
        return self._tenants[name].tenant

    async def get(self, name: str) -> Tenant | None:
        return self._now(name)

    async def everyone(self) -> list[Tenant]:
        return [tenant for name in sorted(self._tenants) if (tenant := self._now(name)) is not None]

    async def recount(self) -> list[str]:
        wrong: list[str] = []
        for name, kept in self._tenants.items():
            taken = kept.tenant.taken
            counted = self._counted(name)
            right = replace(taken, sessions=counted.sessions, calls=counted.calls, tokens=counted.tokens)
            if right != taken:
                wrong.append(name)
                kept.tenant = replace(kept.tenant, taken=right)
        return wrong

    async def lease_requests(self, name: str, wanted: int, returned: int) -> RequestLease:
        kept, now_s = self._tenants.get(name), self._clock()
        rate = kept.tenant.limits.requests_per_second if kept is not None else 0
        if kept is None or not rate:
            return RequestLease(wanted, 0)
        refilled = kept.requests + returned + rate * (now_s - kept.requests_at_s)
        budget = min(float(rate * BURST_S), refilled)
        granted = math.floor(max(0.0, min(budget, wanted)))
        kept.requests, kept.requests_at_s = budget - granted, now_s
        retry_after_ms = 0 if granted else math.ceil((1 - budget) / rate * 1000)
        return RequestLease(granted, rate, retry_after_ms)

    def _now(self, name: str) -> Tenant | None:
        kept = self._tenants.get(name)
        if kept is None:
            return None
        return replace(kept.tenant, taken=replace(kept.tenant.taken, token_budget=self._left(kept)))

    def _left(self, kept: _Kept) -> float:
        rate = kept.tenant.limits.tokens_per_minute
        refilled = (self._clock() - kept.tokens_at_s) * rate / MINUTE_S
        return min(float(rate), kept.tenant.taken.token_budget + refilled)

    def _mine(self, name: str) -> Iterable[KeptSession]:
        return (kept for kept in self._sessions.values() if kept.session.tenant == name)

    def _counted(self, name: str) -> Taken:
        held = [holding(kept) for kept in self._mine(name)]
        return Taken(
            sum(one.sessions for one in held),
            sum(one.calls for one in held),
            sum(one.tokens for one in held),
            sum(one.stored_bytes for one in held),
        )


def holding(kept: KeptSession) -> Movement:
    """What a session and what has not ended in it hold of a quota."""
    # What a block's instances need, the block holds.
    calls = [call for call in kept.calls.values() if not call.ended_ms and not call.block_id]
    blocks = [block for block in kept.blocks.values() if not block.ended_ms]
    ready = [one for one in kept.variables.values() if one.state is VariableState.READY]
    specs = [call.spec for call in kept.calls.values()] + [block.spec for block in kept.blocks.values()]
    return Movement(
        sessions=int(not kept.session.ended_ms),
        calls=len(calls) + sum(block.reserved_calls for block in blocks),
        tokens=sum(call.reserved_tokens for call in calls) + sum(block.reserved_tokens for block in blocks),
        stored_bytes=sum(map(len, specs)) + sum(one.size_bytes for one in ready),
    )


def moved(kept: KeptSession, change: Callable[[], None]) -> Movement:
    """What a change of a session takes and gives back; it is made."""
    before, ended = holding(kept), {call.number for call in kept.calls.values() if call.ended_ms}
    change()
    after = holding(kept)
    used = sum(used_tokens(c) for c in kept.calls.values() if c.ended_ms and c.number not in ended)
    tokens = after.tokens - before.tokens
    return Movement(
        after.sessions - before.sessions,
        after.calls - before.calls,
        tokens,
        tokens + used,
        after.stored_bytes - before.stored_bytes,
    )
