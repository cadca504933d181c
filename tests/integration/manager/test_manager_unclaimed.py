"""A result that needs no claim, on a real database: whoever tells it may tell it again, to any manager."""

from __future__ import annotations

import pytest
from tests.integration.manager.test_manager_natives import DONE, refused
from tests.support.manager import native, serving

from parrot_manager.store.base import Store
from parrot_runtime import errors
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


async def test_a_result_without_a_claim_is_one_step_and_may_be_told_again(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [native("f", [], ["b"]), native("f", [], ["c"])])
        assert (await refused(client.complete(session, b="x"))).kind is errors.CLAIM_LOST
        assert await client.complete_unclaimed(session, b="made") == DONE
        assert await client.claim(session, "c-2", worker="other") == {}
        fault = await refused(client.complete_unclaimed(session, "c-2", c="made"))
        assert fault.kind is errors.CLAIM_LOST
    async with serving(store, bus) as manager:
        assert await manager.client.complete_unclaimed(session, b="made") == DONE
        fault = await refused(manager.client.complete_unclaimed(session, worker="other", b="made"))
        assert fault.kind is errors.CLAIM_LOST
        assert (await manager.client.ended(session, "b")).value == "made"
