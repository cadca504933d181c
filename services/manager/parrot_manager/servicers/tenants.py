"""TenantService: keys and limits, for gateways and operators."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any, Final

from parrot_manager import clock
from parrot_manager.core.tenants import Tenant, TenantLimits
from parrot_manager.store.tenants import ApiKey, Tenants
from parrot_proto.manager.v1 import tenants_pb2 as pb
from parrot_proto.manager.v1 import tenants_pb2_grpc
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id
from parrot_runtime.text import check_name

Context = Any

DIGEST_BYTES: Final = 32
LARGEST: Final = (1 << 53) - 1
"""A larger number would not come through JSON as it is."""
MOST_LEASED: Final = 1_000_000
_NOBODY: Final = ApiKey("", "", "", bytes(DIGEST_BYTES), 0, 1)


class TenantServicer(tenants_pb2_grpc.TenantServiceServicer):
    """Checks requests and passes them to the store: any manager may be asked."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    async def CheckKey(self, request: pb.CheckKeyRequest, context: Context) -> pb.CheckKeyResponse:  # noqa: N802
        """Whose a key is. Takes as long for a wrong secret as for another, whatever they share."""
        key = await self._tenants.find_key(request.id) or _NOBODY
        same = hmac.compare_digest(key.digest, request.digest)
        if not same or key.revoked_ms:
            raise Fault(errors.UNAUTHENTICATED, "the API key is not known, or was revoked")
        tenant = await self._tenants.get(key.tenant)
        rate = tenant.limits.requests_per_second if tenant is not None else 0
        return pb.CheckKeyResponse(tenant=key.tenant, requests_per_second=rate)

    async def LeaseRequests(  # noqa: N802
        self, request: pb.LeaseRequestsRequest, context: Context
    ) -> pb.LeaseRequestsResponse:
        """Takes requests of a tenant's rate."""
        wanted = _within(request.wanted, 1, MOST_LEASED, "wanted")
        returned = _within(request.returned, 0, MOST_LEASED, "returned")
        lease = await self._tenants.lease_requests(request.tenant, wanted, returned)
        return pb.LeaseRequestsResponse(
            granted=lease.granted,
            requests_per_second=lease.per_second,
            retry_after_ms=lease.retry_after_ms,
        )

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:  # noqa: N802
        """Adds a key, whose secret stays with who made it."""
        if len(request.digest) != DIGEST_BYTES:
            raise Fault(errors.INVALID_REQUEST, "digest is a SHA-256", field="digest")
        key = ApiKey(
            _id(request.id, "id"),
            _id(request.tenant, "tenant"),
            check_name(request.label, "label"),
            request.digest,
            clock.now_ms(),
        )
        return pb.CreateKeyResponse(key=_key(await self._tenants.add_key(key)))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:  # noqa: N802
        """Keys, revoked ones too."""
        return pb.ListKeysResponse(keys=map(_key, await self._tenants.list_keys(request.tenant)))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:  # noqa: N802
        """Makes a key good for nothing."""
        key = await self._tenants.revoke_key(request.id, clock.now_ms())
        if key is None:
            raise Fault(errors.NOT_FOUND, f"there is no key {request.id!r}", field="id")
        return pb.RevokeKeyResponse(key=_key(key))

    async def SetLimits(self, request: pb.SetLimitsRequest, context: Context) -> pb.SetLimitsResponse:  # noqa: N802
        """Gives a tenant limits, or takes them away."""
        name = _id(request.tenant, "tenant")
        limits = _limits(request.limits) if request.HasField("limits") else None
        tenant = await self._tenants.set_limits(name, limits)
        return pb.SetLimitsResponse(tenant=_tenant(name, tenant))

    async def GetTenant(self, request: pb.GetTenantRequest, context: Context) -> pb.GetTenantResponse:  # noqa: N802
        """A tenant's limits, and what of them is taken."""
        name = _id(request.name, "name")
        return pb.GetTenantResponse(tenant=_tenant(name, await self._tenants.get(name)))

    async def ListTenants(  # noqa: N802
        self, request: pb.ListTenantsRequest, context: Context
    ) -> pb.ListTenantsResponse:
        """Those that have limits."""
        found: Iterable[Tenant] = await self._tenants.everyone()
        return pb.ListTenantsResponse(tenants=[_tenant(tenant.name, tenant) for tenant in found])


def _id(text: str, field: str) -> str:
    if not is_id(text):
        raise Fault(errors.INVALID_REQUEST, f"{field} is {ID_RULE}", field=field)
    return text


def _within(number: int, least: int, most: int, field: str) -> int:
    if not least <= number <= most:
        raise Fault(errors.INVALID_REQUEST, f"{field} lies between {least:,} and {most:,}", field=field)
    return number


def _limits(message: pb.Limits) -> TenantLimits:
    names = [field.name for field in pb.Limits.DESCRIPTOR.fields]
    return TenantLimits(
        **{name: _within(getattr(message, name), 0, LARGEST, f"limits.{name}") for name in names}
    )


def _key(key: ApiKey) -> pb.Key:
    return pb.Key(
        id=key.id,
        tenant=key.tenant,
        label=key.label,
        created_unix_ms=key.created_ms,
        revoked_unix_ms=key.revoked_ms,
    )


def _tenant(name: str, tenant: Tenant | None) -> pb.Tenant:
    if tenant is None:
        return pb.Tenant(name=name)
    limits, taken = tenant.limits, tenant.taken
    return pb.Tenant(
        name=name,
        limits=pb.Limits(
            sessions=limits.sessions,
            calls=limits.calls,
            tokens=limits.tokens,
            tokens_per_minute=limits.tokens_per_minute,
            requests_per_second=limits.requests_per_second,
            stored_bytes=limits.stored_bytes,
        ),
        sessions=taken.sessions,
        calls=taken.calls,
        tokens=taken.tokens,
        stored_bytes=taken.stored_bytes,
        token_budget=round(taken.token_budget),
    )
