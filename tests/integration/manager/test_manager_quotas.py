"""What tenants have of their limits is counted with what they have it for: one suite for every store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.manager import eventually
from tests.support.quotas import EVERYTHING, SESSION, A, S, batch, call, done, left, refused, taken

from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.commands import Changes
from parrot_manager.core.model import CallState, Edge, Failure, SessionState, Variable
from parrot_manager.core.tenants import Taken, TenantLimits
from parrot_manager.store.base import Store
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


async def test_what_is_accepted_is_taken_and_what_ends_is_settled_once(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, EVERYTHING)
    for _ in range(2):
        await counting_store.insert_session(SESSION, 1)
        await counting_store.insert_calls(batch(call(1, 300), call(2, 400), values={"a": b"four"}), 1)
    assert await taken(counting_store) == Taken(1, 2, 700, 2 * 4 + 4)
    assert await left(counting_store, 300)
    for _ in range(2):
        await counting_store.commit(S, done(call(1, 300), used=100), 1)
    assert await taken(counting_store) == Taken(1, 1, 400, 16)
    assert await left(counting_store, 500)
    failed = Changes(
        calls=(replace(call(2), state=CallState.FAILED, attempt=1, failure=_failure(), ended_ms=4_000),),
        session=replace(SESSION, state=SessionState.CLOSED, ended_ms=5_000),
    )
    for _ in range(2):
        await counting_store.commit(S, failed, 1)
    assert await taken(counting_store) == Taken(0, 0, 0, 16)
    assert await left(counting_store, 900)


async def test_a_session_and_its_first_batch_are_taken_together_and_once(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, EVERYTHING)
    first = batch(call(1, 300), call(2, 400), values={"a": b"four"})
    assert await counting_store.insert_session_with_calls(SESSION, first, 1)
    assert not await counting_store.insert_session_with_calls(SESSION, first, 1)
    await counting_store.insert_calls(first, 1)
    assert await taken(counting_store) == Taken(1, 2, 700, 2 * 4 + 4)
    await counting_store.remove_calls(first, 1)
    assert await taken(counting_store) == Taken(1)


@pytest.mark.parametrize(
    "limits",
    [TenantLimits(sessions=1), TenantLimits(calls=1), TenantLimits(tokens=50), TenantLimits(stored_bytes=4)],
)
async def test_a_session_is_refused_with_its_first_batch_and_neither_is_stored(
    counting_store: Store, limits: TenantLimits
) -> None:
    await counting_store.tenants.set_limits(A, limits)
    other = replace(SESSION, id="s01-0000000000000002")
    await counting_store.insert_session(other, 1)
    before = await taken(counting_store)
    with pytest.raises(Fault) as caught:
        await counting_store.insert_session_with_calls(SESSION, batch(call(1), call(2)), 1)
    assert caught.value.kind in {errors.QUOTA_EXCEEDED, errors.TOO_LARGE}
    assert await taken(counting_store) == before
    assert await counting_store.read_session(S) is None


def _failure() -> Failure:
    return Failure.of(errors.ENGINE_LOST, "gone")


@pytest.mark.parametrize(
    ("limits", "word", "wait_ms"),
    [
        (TenantLimits(calls=2), "2 calls in flight are taken", 1_000),
        (TenantLimits(tokens=80), "80 tokens in flight are taken", 1_000),
        (TenantLimits(tokens_per_minute=100), "left", 12_000),
        (TenantLimits(stored_bytes=10), "8 stored bytes are taken", 60_000),
    ],
)
async def test_a_refusal_says_why_and_takes_and_stores_nothing(
    counting_store: Store, limits: TenantLimits, word: str, wait_ms: int
) -> None:
    await counting_store.tenants.set_limits(A, limits)
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1), call(2)), 1)
    before = await taken(counting_store)
    fault = await refused(counting_store, batch(call(3)))
    assert fault.kind is errors.QUOTA_EXCEEDED
    assert word in fault.message
    assert wait_ms / 2 <= fault.retry_after_ms <= wait_ms
    assert await taken(counting_store) == before
    record = await counting_store.load_session(A, S)
    assert record is not None
    assert [one.id for one in record.calls] == ["c-1", "c-2"]


async def test_what_could_never_fit_is_no_matter_of_waiting(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, TenantLimits(calls=1))
    await counting_store.insert_session(SESSION, 1)
    fault = await refused(counting_store, batch(call(1), call(2)))
    assert (fault.kind, fault.retry_after_ms) == (errors.TOO_LARGE, 0)
    await counting_store.insert_calls(batch(call(1)), 1)


async def test_sessions_are_counted_and_another_tenant_is_another_matter(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, TenantLimits(sessions=1))
    await counting_store.insert_session(SESSION, 1)
    second = replace(SESSION, id="s00-0000000000000002")
    with pytest.raises(Fault, match="1 open sessions are taken") as caught:
        await counting_store.insert_session(second, 1)
    assert caught.value.retry_after_ms
    assert await counting_store.load_session(A, second.id) is None
    await counting_store.insert_session(replace(second, tenant="tenant-b"), 1)
    closed = replace(SESSION, state=SessionState.CLOSED, ended_ms=5_000)
    await counting_store.commit(S, Changes(session=closed), 1)
    await counting_store.insert_session(replace(second, id="s00-0000000000000003"), 1)


async def test_a_batch_that_is_taken_back_gives_all_back_once(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, EVERYTHING)
    await counting_store.insert_session(SESSION, 1)
    first, second = batch(call(1, 300)), batch(call(2, 300), values={"a": b"four"})
    await counting_store.insert_calls(first, 1)
    before = await taken(counting_store)
    await counting_store.insert_calls(second, 1)
    assert await taken(counting_store) != before
    assert await left(counting_store, 400)
    for _ in range(2):
        await counting_store.remove_calls(second, 1)
    assert await taken(counting_store) == before
    assert await left(counting_store, 700)


async def test_more_used_than_was_thought_is_owed(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, TenantLimits(tokens_per_minute=600))
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1)), 1)
    await counting_store.commit(S, done(call(1), used=700), 1)
    assert await left(counting_store, -100)
    fault = await refused(counting_store, batch(call(2)))
    assert 7_000 <= fault.retry_after_ms <= 14_000
    assert "0 are left" in fault.message


async def test_the_minutes_tokens_come_back_with_time(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, TenantLimits(tokens_per_minute=6_000))
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1, 6_000)), 1)
    assert (await refused(counting_store, batch(call(2, 40)))).kind is errors.QUOTA_EXCEEDED

    async def accepted() -> bool:
        try:
            await counting_store.insert_calls(batch(call(2, 40)), 1)
        except Fault:
            return False
        return True

    await eventually(accepted, within_s=5)


async def test_a_block_holds_what_its_instances_may_have_until_it_ends(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, EVERYTHING)
    await counting_store.insert_session(SESSION, 1)
    block = Block(
        S, "b-1", 1, 1, "", "map", (), (Edge("all", "all"),), b"block", 1_000,
        reserved_calls=3, reserved_tokens=600,
    )  # fmt: skip
    await counting_store.insert_calls(
        replace(batch(blocks=(block,)), variables=(Variable(S, "all", "all"),)), 1
    )
    assert await taken(counting_store) == Taken(1, 3, 600, 5)
    instance = call(2, 50, block_id="b-1")
    made = Variable(S, "v2", "out", producer_call_id="c-2")
    running = replace(block, state=BlockState.RUNNING, count=1)
    unfolded = Changes(new_calls=(instance,), new_variables=(made,), blocks=(running,))
    await counting_store.commit(S, unfolded, 1)
    assert await taken(counting_store) == Taken(1, 3, 600, 5)
    assert await left(counting_store, 400)
    await counting_store.commit(S, done(instance, used=200), 1)
    assert await taken(counting_store) == Taken(1, 3, 600, 9)
    assert await left(counting_store, 200)
    for _ in range(2):
        await counting_store.commit(
            S, Changes(blocks=(replace(running, state=BlockState.DONE, ended_ms=5_000),)), 1
        )
    assert await taken(counting_store) == Taken(1, 0, 0, 9)
    assert await left(counting_store, 800)


async def test_deleted_sessions_free_their_storage(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, EVERYTHING)
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1), values={"a": b"four"}), 1)
    await counting_store.commit(S, done(call(1), value=b"twelve bytes"), 1)
    assert (await taken(counting_store)).stored_bytes == 4 + 4 + 12
    closed = replace(SESSION, state=SessionState.CLOSED, ended_ms=5_000)
    await counting_store.commit(S, Changes(session=closed), 1)
    await counting_store.mark_purged(0, [S], 1)
    assert await counting_store.delete_ended(0, 9_000, 10, 1) == 1
    assert (await taken(counting_store)).stored_bytes == 0


async def test_what_a_tenant_has_is_counted_when_it_gets_limits(counting_store: Store) -> None:
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1), call(2), values={"a": b"four"}), 1)
    await counting_store.commit(S, done(call(1)), 1)
    assert await counting_store.tenants.get(A) is None
    limited = await counting_store.tenants.set_limits(A, EVERYTHING)
    assert limited is not None
    assert await taken(counting_store) == Taken(1, 1, 40, 16)
    assert await counting_store.tenants.recount() == []
    assert [one.name for one in await counting_store.tenants.everyone()] == [A]
    assert await counting_store.tenants.set_limits(A, None) is None
    assert await counting_store.tenants.everyone() == []
    await counting_store.insert_calls(batch(*(call(number) for number in range(3, 200))), 1)


async def test_limits_that_change_keep_what_is_spent(counting_store: Store) -> None:
    await counting_store.tenants.set_limits(A, TenantLimits(tokens_per_minute=1_000))
    await counting_store.insert_session(SESSION, 1)
    await counting_store.insert_calls(batch(call(1, 900)), 1)
    changed = await counting_store.tenants.set_limits(A, TenantLimits(tokens_per_minute=1_000, calls=5))
    assert changed is not None
    assert changed.taken.token_budget < 150
    assert changed.limits.calls == 5
