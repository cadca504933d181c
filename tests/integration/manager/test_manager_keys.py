"""Keys, and request rates: one suite for every store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.manager import eventually
from tests.support.quotas import A

from parrot_manager.core.tenants import TenantLimits
from parrot_manager.store.base import Store
from parrot_manager.store.tenants import ApiKey
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


async def test_a_rate_is_granted_in_turn_and_what_is_returned_is_there_again(counting_store: Store) -> None:
    assert (await counting_store.tenants.lease_requests(A, 7, 0)).granted == 7
    await counting_store.tenants.set_limits(A, TenantLimits(requests_per_second=5))
    assert (await counting_store.tenants.lease_requests(A, 3, 0)).granted == 3
    lease = await counting_store.tenants.lease_requests(A, 3, 0)
    assert (lease.granted, lease.per_second) == (2, 5)
    lease = await counting_store.tenants.lease_requests(A, 1, 0)
    assert lease.granted == 0
    assert 0 < lease.retry_after_ms <= 200
    assert (await counting_store.tenants.lease_requests(A, 1, 1)).granted == 1

    async def again() -> bool:
        return (await counting_store.tenants.lease_requests(A, 1, 0)).granted == 1

    await eventually(again, within_s=2)


async def test_keys_are_kept_without_their_secrets_and_revoked_for_good(counting_store: Store) -> None:
    key = ApiKey("0123456789ab", A, "laptop", b"\0digest", 5_000)
    for _ in range(2):
        assert await counting_store.tenants.add_key(key) == key
    with pytest.raises(Fault) as caught:
        await counting_store.tenants.add_key(replace(key, digest=b"other"))
    assert caught.value.kind is errors.IDEMPOTENCY_CONFLICT
    other = ApiKey("0123456789ac", "tenant-b", "", b"\1", 6_000)
    await counting_store.tenants.add_key(other)
    assert await counting_store.tenants.list_keys("") == [key, other]
    assert await counting_store.tenants.list_keys(A) == [key]
    assert await counting_store.tenants.find_key("nowhere") is None
    assert await counting_store.tenants.revoke_key("nowhere", 7_000) is None
    for now_ms in (7_000, 8_000):
        revoked = await counting_store.tenants.revoke_key(key.id, now_ms)
        assert revoked == replace(key, revoked_ms=7_000)
    assert await counting_store.tenants.find_key(key.id) == revoked
