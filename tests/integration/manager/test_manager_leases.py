"""Who holds which shard: one suite for both stores, by the store's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.manager import eventually
from tests.support.postgres import PostgresServer

from parrot_manager.store import schema
from parrot_manager.store.leases import Leases, Member, Standing
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import engine_of, opened
from parrot_manager.store.statements import FENCE
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

ONE = Member("m-1", "first", "here:1")
TWO = Member("m-2", "second", "there:2")
SHARDS = range(4)
LONG_S = 60.0
SHORT_S = 0.3


@pytest.fixture(params=["memory", "postgres"])
async def leases(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Leases]:
    """The leases of each store, nobody there."""
    if request.param == "memory":
        yield MemoryStore().leases
        return
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        yield store.leases


def holders(standing: Standing) -> list[tuple[int, str]]:
    """Each shard's epoch and holder."""
    return [(holding.epoch, holding.manager_id) for holding in standing.holdings]


async def test_a_shard_is_claimed_once_while_its_holder_lives(leases: Leases) -> None:
    await leases.join(ONE, SHARDS, LONG_S)
    standing = await leases.join(TWO, SHARDS, LONG_S)
    assert [peer.address for peer in standing.peers] == ["here:1", "there:2"]
    assert standing.vacant() == [0, 1, 2, 3]
    assert await leases.claim(ONE, [0, 2]) == {0: 1, 2: 1}
    assert await leases.claim(TWO, SHARDS) == {1: 1, 3: 1}
    standing = await leases.renew(ONE, LONG_S)
    assert holders(standing) == [(1, "m-1"), (1, "m-2"), (1, "m-1"), (1, "m-2")]
    assert standing.vacant() == []
    assert standing.of("m-2") == {1: 1, 3: 1}


async def test_a_lease_that_was_not_renewed_frees_its_shards_under_new_epochs(leases: Leases) -> None:
    await leases.join(ONE, SHARDS, SHORT_S)
    await leases.claim(ONE, SHARDS)
    await leases.join(TWO, SHARDS, LONG_S)
    assert await leases.claim(TWO, SHARDS) == {}

    async def free() -> bool:
        return (await leases.renew(TWO, LONG_S)).vacant() == [0, 1, 2, 3]

    await eventually(free)
    assert await leases.claim(TWO, SHARDS) == dict.fromkeys(SHARDS, 2)
    # The first comes back, and finds that it holds nothing.
    standing = await leases.renew(ONE, LONG_S)
    assert standing.of("m-1") == {}
    assert await leases.claim(ONE, SHARDS) == {}


async def test_who_has_no_lease_claims_nothing(leases: Leases) -> None:
    await leases.join(ONE, SHARDS, SHORT_S)

    async def over() -> bool:
        return await leases.claim(ONE, [0]) == {}

    await eventually(over)
    await leases.join(TWO, SHARDS, LONG_S)
    await leases.leave(TWO)
    assert await leases.claim(TWO, SHARDS) == {}


async def test_released_shards_keep_their_epoch_until_the_next_claim(leases: Leases) -> None:
    await leases.join(ONE, SHARDS, LONG_S)
    await leases.join(TWO, SHARDS, LONG_S)
    held = await leases.claim(ONE, SHARDS)
    await leases.release(ONE, {0: held[0], 1: held[1] + 1})
    standing = await leases.renew(TWO, LONG_S)
    assert holders(standing)[:2] == [(1, ""), (1, "m-1")]
    assert await leases.claim(TWO, SHARDS) == {0: 2}


async def test_a_restarted_manager_takes_its_own_shards_at_once_and_ends_who_ran_before(
    leases: Leases,
) -> None:
    await leases.join(ONE, SHARDS, LONG_S)
    await leases.claim(ONE, SHARDS)
    again = Member("m-1", "later", "here:1")
    await leases.join(again, SHARDS, LONG_S)
    assert await leases.claim(ONE, SHARDS) == {}
    assert await leases.claim(again, SHARDS) == dict.fromkeys(SHARDS, 2)
    with pytest.raises(Fault, match="--manager-id") as replaced:
        await leases.renew(ONE, LONG_S)
    assert replaced.value.kind is errors.INVALID_REQUEST
    await leases.leave(ONE)
    assert (await leases.renew(again, LONG_S)).of("m-1") == dict.fromkeys(SHARDS, 2)


async def test_who_leaves_is_told_of_first_and_gone_afterwards(leases: Leases) -> None:
    await leases.join(ONE, SHARDS, LONG_S)
    await leases.join(TWO, SHARDS, LONG_S)
    await leases.claim(ONE, SHARDS)
    assert (await leases.renew(ONE, LONG_S, leaving=True)).share_of("m-1") == 0
    standing = await leases.renew(TWO, LONG_S)
    assert [(peer.id, peer.leaving) for peer in standing.peers] == [("m-1", True), ("m-2", False)]
    assert standing.share_of("m-2") == 4
    await leases.leave(ONE)
    standing = await leases.renew(TWO, LONG_S)
    assert [peer.id for peer in standing.peers] == ["m-2"]
    assert standing.vacant() == [0, 1, 2, 3]


async def test_many_claim_at_once_and_no_shard_has_two_holders(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    shards = range(64)

    async def compete(number: int) -> dict[int, int]:
        me = Member(f"m-{number}", "only", f"a:{number}")
        async with opened(database_url, 20) as store:
            await store.leases.join(me, shards, LONG_S)
            got: dict[int, int] = {}
            while True:
                vacant = (await store.leases.renew(me, LONG_S)).vacant()
                if not vacant:
                    return got
                got |= await store.leases.claim(me, vacant[:8])

    held = await asyncio.gather(*(compete(number) for number in range(4)))
    assert sorted(shard for each in held for shard in each) == list(shards)
    assert {epoch for each in held for epoch in each.values()} == {1}


async def test_a_writer_that_stops_in_the_middle_does_not_keep_its_shard(
    postgres: PostgresServer, database_url: str
) -> None:
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        await store.leases.join(ONE, SHARDS, SHORT_S)
        await store.leases.claim(ONE, SHARDS)
        await store.leases.join(TWO, SHARDS, LONG_S)
        engine = engine_of(database_url)
        async with engine.connect() as stopped:
            await stopped.execute(FENCE, {"k_shard": 0, "k_epoch": 1})

            async def claimed() -> bool:
                await store.leases.claim(TWO, SHARDS)
                return len((await store.leases.renew(TWO, LONG_S)).of("m-2")) == len(SHARDS)

            await eventually(claimed, within_s=5)
            await stopped.invalidate()
        await engine.dispose()
