"""A tenant's limits, what of them is taken, and what a refusal says."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

from parrot_runtime import errors
from parrot_runtime.errors import Fault

SLOT_S: Final = 1
"""When to come again for a place that somebody else has: nobody knows when it is free."""
STORAGE_S: Final = 60
MINUTE_S: Final = 60


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """How much a tenant may have; 0: no limit of this kind.

    Attributes:
        sessions: that are open.
        calls: that have not ended.
        tokens: that calls which have not ended may come to use.
        stored_bytes: of templates and values that are kept.
    """

    sessions: int = 0
    calls: int = 0
    tokens: int = 0
    tokens_per_minute: int = 0
    requests_per_second: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Movement:
    """What is taken of a tenant's quota, or given back where it is negative.

    Attributes:
        tokens: in flight: reserved by what has not ended.
        spent_tokens: of the minute's.
    """

    sessions: int = 0
    calls: int = 0
    tokens: int = 0
    spent_tokens: int = 0
    stored_bytes: int = 0

    @property
    def reversed(self) -> Movement:
        """What takes it back."""
        return Movement(**{name: -amount for name, amount in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken. `token_budget`: what is left of the minute's tokens now; it may be negative."""

    sessions: int = 0
    calls: int = 0
    tokens: int = 0
    stored_bytes: int = 0
    token_budget: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant that has limits."""

    name: str
    limits: TenantLimits
    taken: Taken


@dataclass(frozen=True, slots=True)
class _Share:
    """One limit, and what a movement asks of it."""

    limit: int
    taken: int
    asked: int
    unit: str
    advice: str
    wait_s: int


def refusal(tenant: Tenant, asked: Movement) -> Fault | None:
    """Why a tenant can't have so much more; None: it can."""
    limits, taken = tenant.limits, tenant.taken
    shares = (
        _Share(limits.sessions, taken.sessions, asked.sessions, "open sessions", "end some", SLOT_S),
        _Share(
            limits.calls, taken.calls, asked.calls, "calls in flight", "wait until some have ended", SLOT_S
        ),
        _Share(
            limits.tokens,
            taken.tokens,
            asked.tokens,
            "tokens in flight",
            "wait until some calls have ended, or lower max_tokens",
            SLOT_S,
        ),
        _Share(
            limits.stored_bytes,
            taken.stored_bytes,
            asked.stored_bytes,
            "stored bytes",
            "they are freed when ended sessions are deleted",
            STORAGE_S,
        ),
    )
    for share in shares:
        if share.limit and share.asked > 0 and share.taken + share.asked > share.limit:
            return _refused(share)
    return _out_of_budget(limits.tokens_per_minute, taken.token_budget, asked.spent_tokens)


def _refused(share: _Share) -> Fault:
    if share.asked > share.limit:
        return _never(share.asked, share.limit, share.unit)
    return Fault(
        errors.QUOTA_EXCEEDED,
        f"{share.taken:,} {share.unit} are taken, and {share.asked:,} more would exceed the quota of "
        f"{share.limit:,}; {share.advice}",
        retry_after_ms=share.wait_s * 1000,
    )


def _out_of_budget(limit: int, left: float, asked: int) -> Fault | None:
    if not limit or asked <= 0 or asked <= left:
        return None
    if asked > limit:
        return _never(asked, limit, "tokens a minute")
    wait_s = math.ceil((asked - left) / limit * MINUTE_S)
    return Fault(
        errors.QUOTA_EXCEEDED,
        f"{asked:,} tokens are asked for, and of the quota of {limit:,} a minute "
        f"{max(0, math.floor(left)):,} are left; they are there in {wait_s} s",
        retry_after_ms=wait_s * 1000,
    )


def _never(asked: int, limit: int, unit: str) -> Fault:
    return Fault(
        errors.TOO_LARGE,
        f"it reserves {asked:,} {unit}, and the whole quota is {limit:,}; send less at once: fewer calls, "
        "a smaller max_tokens, or of a map a smaller max_items",
    )
