"""What the manager asks of its store about tenants: keys, limits, request rates.

Of a tenant that has limits, what is taken of them is kept with the rows it is taken for, in the same
transactions (see `Store`): each movement is counted once, however often its write is repeated, over all
managers. A tenant without limits costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from parrot_manager.core.tenants import Tenant, TenantLimits
from parrot_runtime import errors
from parrot_runtime.errors import Fault

BURST_S = 1
"""A tenant that was silent may send the requests of so many seconds at once."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: `digest` is the SHA-256 of its secret. `revoked_ms` 0: it is good."""

    id: str
    tenant: str
    label: str
    digest: bytes
    created_ms: int
    revoked_ms: int = 0


@dataclass(frozen=True, slots=True)
class RequestLease:
    """Requests that were taken of a tenant's rate.

    Attributes:
        granted: as many as were wanted, or fewer.
        per_second: the rate; 0: no limit.
        retry_after_ms: when nothing was granted, how long until there is one.
    """

    granted: int
    per_second: int
    retry_after_ms: int = 0


class Tenants(ABC):
    """Every method raises `Fault` (`unavailable`) when the store can't be reached in time."""

    @abstractmethod
    async def add_key(self, key: ApiKey) -> ApiKey:
        """Adds a key; adding it again changes nothing. Returns it as it is kept.

        Raises:
            Fault: `idempotency_conflict`, when the id is another key's.
        """

    @abstractmethod
    async def find_key(self, key_id: str) -> ApiKey | None:
        """A key, revoked or not."""

    @abstractmethod
    async def list_keys(self, tenant: str) -> list[ApiKey]:
        """A tenant's keys, the newest last; an empty name: everybody's."""

    @abstractmethod
    async def revoke_key(self, key_id: str, now_ms: int) -> ApiKey | None:
        """Makes a key good for nothing; None when there is none. Again changes nothing."""

    @abstractmethod
    async def set_limits(self, name: str, limits: TenantLimits | None) -> Tenant | None:
        """Gives a tenant limits in place of those it had, and counts what it has; None takes them away."""

    @abstractmethod
    async def get(self, name: str) -> Tenant | None:
        """A tenant that has limits."""

    @abstractmethod
    async def everyone(self) -> list[Tenant]:
        """All that have limits, by name."""

    @abstractmethod
    async def recount(self) -> list[str]:
        """Counts anew what is taken, storage excepted; the names of those whose count was wrong."""

    @abstractmethod
    async def lease_requests(self, name: str, wanted: int, returned: int) -> RequestLease:
        """Takes up to `wanted` requests (at least 1) of a tenant's rate, `returned` ones given back first."""


def same_key(kept: ApiKey, added: ApiKey) -> ApiKey:
    """The kept key, which was added before.

    Raises:
        Fault: `idempotency_conflict`, when it is another one.
    """
    if (kept.tenant, kept.digest) != (added.tenant, added.digest):
        raise Fault(errors.IDEMPOTENCY_CONFLICT, f"the id {added.id!r} is another key's", field="id")
    return kept
