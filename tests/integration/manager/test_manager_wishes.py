"""What clients want of a session, stored: keys, criteria, lazy calls, cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.support.fake_engine import attached, hang
from tests.support.manager import call, eventually, serving

from parrot_manager.core.model import CallState
from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, ids
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_session_id, session_id_of
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

THROUGHPUT = pb.Criteria(kind=pb.OBJECTIVE_KIND_THROUGHPUT)
LATENCY = pb.Criteria(kind=pb.OBJECTIVE_KIND_LATENCY)


def test_a_keys_session_id_is_one_and_no_other_tenants() -> None:
    first = session_id_of("tenant", "key")
    assert is_session_id(first)
    assert first == session_id_of("tenant", "key")
    assert len({first, session_id_of("tenant", "key2"), session_id_of("tenan", "tkey")}) == 3


async def test_a_session_opened_twice_under_one_key_is_one(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        first, again = await asyncio.gather(
            manager.client.open(label="x", key="k"), manager.client.open(label="x", key="k")
        )
        assert first == again
        assert await manager.client.open(label="x", key="other") != first
        with pytest.raises(Fault) as refused:
            await manager.client.open(label="y", key="k")
        assert refused.value.kind is errors.IDEMPOTENCY_CONFLICT
    async with serving(store, bus, retain_s=0.01) as manager:
        assert await manager.client.open(label="x", key="k") == first
        await manager.client.close(first)

        async def forgotten() -> bool:
            return first not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        assert await manager.client.open(label="x", key="k") == first


async def test_a_batch_sent_twice_under_one_key_runs_once(store: Store, bus: Bus) -> None:
    batch = [call("one", ["a"], ["b"])]
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        sent = [manager.client.submit(session, batch, {"a": "x"}, key="k") for _ in range(3)]
        assert await asyncio.gather(*sent) == [["c-1"]] * 3
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        assert await manager.client.submit(session, batch, {"a": "x"}, key="k") == ["c-1"]
        with pytest.raises(Fault) as refused:
            await manager.client.submit(session, batch, {"a": "y"}, key="k")
        assert refused.value.kind is errors.IDEMPOTENCY_CONFLICT
        await manager.client.ended(session, "b")
        assert len(engine.programs) == 1


async def test_a_batch_that_is_sent_again_long_after_its_session_ended_is_answered_as_before(
    store: Store, bus: Bus
) -> None:
    batch = [call("one", ["a"], ["b"])]
    async with serving(store, bus, retain_s=0.01) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, batch, {"a": "x"}, key="k")
        await manager.client.close(session)

        async def forgotten() -> bool:
            return session not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        assert await manager.client.submit(session, batch, {"a": "x"}, key="k") == ["c-1"]
        for key, kind in (("k", errors.IDEMPOTENCY_CONFLICT), ("new", errors.SESSION_ENDED)):
            with pytest.raises(Fault) as refused:
                await manager.client.submit(session, batch, {"a": "y"}, key=key)
            assert refused.value.kind is kind


async def test_a_batch_that_was_refused_may_come_again_under_its_key(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        with pytest.raises(Fault):
            await manager.client.submit(session, [call("one", ["a"], ["b"])], key="k")
        await manager.client.set(session, "a", "x")
        assert await manager.client.submit(session, [call("one", ["a"], ["b"])], key="k") == ["c-1"]


async def test_a_lazy_session_runs_what_is_read_also_after_a_restart(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        session = await manager.client.open(lazy=True)
        await manager.client.submit(
            session, [call("one", ["a"], ["b"]), call("two", ["b"], ["c"])], {"a": "x"}
        )
        assert (await manager.client.session(session)).session.lazy
        assert (await manager.client.get(session, "b", wait_ms=5_000)).value == "text of b"
        assert [program.name for program in engine.programs] == ["one"]
    async with serving(store, bus) as manager:
        await manager.client.get(session, "c")
        await manager.shell.settled(session)
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:

        async def done() -> bool:
            graph = await manager.client.session(session)
            return graph.calls[1].state == common_pb2.CALL_STATE_DONE

        await eventually(done)


async def test_a_readers_criteria_are_kept_and_shown_with_what_they_make_of_calls(
    store: Store, bus: Bus
) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
        await manager.client.get(session, "b", criteria=THROUGHPUT)
        shown = (await manager.client.session(session)).calls[0].objective
        assert shown.kind == pb.OBJECTIVE_KIND_THROUGHPUT
        assert shown.reason
        await manager.client.get(session, "b", criteria=LATENCY)
        await manager.shell.settled(session)
    async with serving(store, bus) as manager:
        variables = {v.id: v for v in (await manager.client.session(session)).variables}
        assert variables["b"].criteria == LATENCY


@pytest.mark.parametrize(
    "criteria",
    [
        pb.Criteria(kind=pb.OBJECTIVE_KIND_DEADLINE),
        pb.Criteria(kind=pb.OBJECTIVE_KIND_LATENCY, deadline_unix_ms=5),
        pb.Criteria(kind=99),  # type: ignore[arg-type]
    ],
)
async def test_criteria_that_mean_nothing_are_refused(memory: Store, bus: Bus, criteria: pb.Criteria) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        await manager.client.set(session, "a", "x")
        with pytest.raises(Fault) as refused:
            await manager.client.get(session, "a", criteria=criteria)
        assert refused.value.kind is errors.INVALID_REQUEST


async def test_a_cancelled_call_stops_on_its_engine_and_is_stored_as_cancelled(
    store: Store, bus: Bus
) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus, play=hang) as engine:
        session = await manager.client.open()
        batch = [call("one", ["a"], ["b"]), call("two", ["b"], ["c"]), call("aside", ["a"], ["d"])]
        await manager.client.submit(session, batch, {"a": "x"})
        await eventually(_running(engine.programs, 2))
        assert await manager.client.cancel(session, "c-1") == ["c-1", "c-2"]

        async def stopped() -> bool:
            return [ref.call_id for ref in engine.cancelled] == ["c-1"]

        await eventually(stopped)
        record = await store.load_session("default", session)
        assert record is not None
        assert [c.state is CallState.CANCELLED for c in record.calls] == [True, True, False]
        got = await manager.client.get(session, "c")
        assert got.variable.failure.type == "cancelled"
        assert await manager.client.cancel(session, "c-1") == []
        with pytest.raises(Fault) as refused:
            await manager.client.cancel(session, "c-9")
        assert refused.value.kind is errors.NOT_FOUND


async def test_another_tenant_cannot_cancel(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        manager.client.tenant = "other"
        with pytest.raises(Fault) as refused:
            await manager.client.cancel(session, "c-1")
        assert refused.value.kind is errors.NOT_FOUND


def _running(programs: Sequence[object], count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(programs) >= count

    return look


async def test_a_key_whose_id_another_tenants_session_has_is_refused_and_that_one_stays(
    memory: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "session_id_of", lambda tenant, key: "s03-00000000000000aa")
    async with serving(memory, bus) as manager:
        first = await manager.client.open(key="k")
        await manager.client.submit(first, [call("one", [], ["a"])])
        manager.client.tenant = "other"
        with pytest.raises(Fault) as refused:
            await manager.client.open(key="k")
        assert refused.value.kind is errors.IDEMPOTENCY_CONFLICT
        manager.client.tenant = "default"
        assert len((await manager.client.session(first)).calls) == 1
