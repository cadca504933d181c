"""A tenant with limits, all the way through a real manager, its database and an engine."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text
from tests.integration.manager.test_manager_blocks import looped, mapped, play
from tests.support.fake_engine import attached, hang
from tests.support.manager import TENANT, ManagerUnderTest, call, eventually, serving

from parrot_manager.core.tenants import Tenant, TenantLimits
from parrot_manager.store.base import Store
from parrot_manager.store.postgres import engine_of
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

MINUTE = 100_000
USED = 12
"""The tokens the fake engine says a call used."""


async def tenant(store: Store) -> Tenant:
    """What it has."""
    found = await store.tenants.get(TENANT)
    assert found is not None
    return found


async def at_rest(store: Store) -> None:
    """Returns once nothing is in flight."""

    async def none() -> bool:
        taken = (await tenant(store)).taken
        return (taken.calls, taken.tokens) == (0, 0)

    await eventually(none)


async def full(manager: ManagerUnderTest, session: str, name: str, key: str = "") -> bool:
    """Whether a call more is refused for the tenant's quota; it is accepted otherwise."""
    try:
        await manager.client.submit(session, [call(name, [], [name])], key=key)
    except Fault as fault:
        if fault.kind is not errors.QUOTA_EXCEEDED:
            raise
        return True
    return False


async def test_calls_are_charged_with_what_they_used_once_they_are_done(store: Store, bus: Bus) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=100, tokens_per_minute=MINUTE))
    async with serving(store, bus) as manager, attached(manager.address, bus):
        session = await manager.client.open()
        chain = [call("one", [], ["a"]), call("two", ["a"], ["b"]), call("three", ["b"], ["c"])]
        await manager.client.submit(session, chain)
        await manager.client.ended(session, "c")
        await at_rest(store)
        left = (await tenant(store)).taken.token_budget
        # The minute's tokens come back meanwhile, up to where they were.
        assert left >= MINUTE - 3 * USED
        assert await store.tenants.recount() == []


async def test_what_is_cancelled_or_closed_gives_its_place_to_others(store: Store, bus: Bus) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=2, sessions=2))
    async with serving(store, bus) as manager, attached(manager.address, bus, play=hang):
        first, second = await manager.client.open(), await manager.client.open()
        (call_id,) = await manager.client.submit(first, [call("one", [], ["a"])])
        assert not await full(manager, second, "b")
        assert await full(manager, first, "c")
        await manager.client.cancel(first, call_id)
        assert not await full(manager, first, "c")
        with pytest.raises(Fault, match="2 open sessions are taken"):
            await manager.client.open()
        await manager.client.close(second)
        third = await manager.client.open()
        assert not await full(manager, third, "d")
        await manager.client.close(first)
        await manager.client.close(third)
        await at_rest(store)
        assert (await tenant(store)).taken.sessions == 0


async def test_a_refused_batch_leaves_nothing_and_may_be_sent_again(store: Store, bus: Bus) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=1))
    async with serving(store, bus) as manager, attached(manager.address, bus, play=hang) as engine:
        session = await manager.client.open()
        (call_id,) = await manager.client.submit(session, [call("one", [], ["a"])])
        assert await full(manager, session, "b", key="again")
        assert [known.name for known in (await manager.client.session(session)).calls] == ["one"]
        await manager.client.cancel(session, call_id)
        assert not await full(manager, session, "b", key="again")
        assert not await full(manager, session, "b", key="again"), "the key's batch is there"

        async def ran() -> bool:
            return any(program.name == "b" for program in engine.programs)

        await eventually(ran)
        graph = await manager.client.session(session)
        assert [known.name for known in graph.calls] == ["one", "b"]


async def test_a_map_and_a_loop_reserve_give_back_and_are_charged(store: Store, bus: Bus) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=7, tokens_per_minute=10 * MINUTE))
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play, capacity=8):
        session = await manager.client.open()
        given = {"list": json.dumps(["one", "two", "three"]), "start": "x"}
        with pytest.raises(Fault, match="smaller max_items") as refused:
            await manager.client.submit(session, [], given, blocks=[mapped(), looped()])
        assert refused.value.kind is errors.TOO_LARGE
        await manager.client.submit(session, [], given, blocks=[mapped(maxItems=6), looped()])
        assert (await manager.client.ended(session, "all")).value == '["ONE","TWO","THREE"]'
        assert (await manager.client.ended(session, "grown")).value == "xaaaaa"
        await at_rest(store)
        # Three items and five rounds; less has come back since.
        assert (await tenant(store)).taken.token_budget >= 10 * MINUTE - 8 * USED
        assert await store.tenants.recount() == []


async def test_what_was_running_when_a_manager_died_is_given_back_by_the_next(store: Store, bus: Bus) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=2, sessions=1))
    async with serving(store, bus) as manager, attached(manager.address, bus, play=hang):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
    async with serving(store, bus) as manager, attached(manager.address, bus):
        assert (await manager.client.ended(session, "b")).value == "text of b"
        await at_rest(store)
        await manager.client.close(session)
        await manager.client.open()


async def test_upkeep_mends_a_wrong_count(store: Store, bus: Bus, database_url: str) -> None:
    await store.tenants.set_limits(TENANT, TenantLimits(calls=1))
    engine = engine_of(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE tenants SET calls = 1"))
    await engine.dispose()
    async with serving(store, bus, upkeep_interval_s=0.05) as manager:
        session = await manager.client.open()

        async def accepted() -> bool:
            return not await full(manager, session, "a")

        await eventually(accepted)
