"""What a manager tells Prometheus moves when, and as, it should."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.support.cut_leases import CutStore
from tests.support.eventually import eventually
from tests.support.fake_engine import FakeEngine, attached, finish, hang
from tests.support.manager import ManagerUnderTest, call, serving
from tests.support.metrics import Scrape, collected
from tests.support.postgres import PostgresServer

from parrot_manager.core.commands import Changes
from parrot_manager.gauges import ASKED_MODELS
from parrot_manager.metrics import ManagerMetrics
from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import opened
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


def seen(manager: ManagerUnderTest) -> Scrape:
    """What it says now."""
    return collected(manager.shell.metrics.registry)


async def becomes(manager: ManagerUnderTest, expected: float, name: str, **labels: str) -> None:
    """Returns once a metric has a value."""
    await eventually(lambda: seen(manager).value(f"parrot_manager_{name}", **labels) == expected)


async def open_with(manager: ManagerUnderTest, *outputs: str, model: str = "") -> str:
    """A session with a call for each output."""
    session = await manager.client.open()
    await manager.client.submit(session, [call(name, [], [name], model) for name in outputs])
    return session


async def test_calls_are_counted_where_they_are(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, capacity=1, play=hang):
        await becomes(manager, 1, "engines", model="m", state="serving")
        session = await open_with(manager, "a", "b", "c")
        await manager.client.submit(session, [call("after", ["b"], ["d"])])
        await becomes(manager, 1, "calls", state="running")
        await becomes(manager, 2, "calls", state="queued")
        await becomes(manager, 1, "calls", state="waiting")
        await becomes(manager, 1, "sessions")
        await manager.client.close(session)
        for state in ("running", "queued", "waiting"):
            await becomes(manager, 0, "calls", state=state)


async def test_a_queue_has_a_length_and_an_age_by_the_model_that_is_asked_for(
    memory: Store, bus: Bus
) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, capacity=1, play=hang):
        await becomes(manager, 1, "engines", model="m")
        assert {"any", "m"} == {
            sample.labels["model"]
            for family in seen(manager).families
            if family.name == "parrot_manager_queue_oldest_seconds"
            for sample in family.samples
        }
        assert seen(manager).value("parrot_manager_queue_oldest_seconds") == 0
        first = await open_with(manager, "a", "b", model="m")
        second = await open_with(manager, "c")
        await becomes(manager, 1, "queued_calls", model="m")
        await becomes(manager, 1, "queued_calls", model="any")
        before = seen(manager).value("parrot_manager_queue_oldest_seconds", model="m")
        await eventually(
            lambda: seen(manager).value("parrot_manager_queue_oldest_seconds", model="m") > before + 0.02
        )
        await manager.client.close(first)
        await manager.client.close(second)
        await becomes(manager, 0, "queue_oldest_seconds", model="m")


async def test_names_that_clients_make_up_are_told_apart_up_to_a_bound(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        made_up = [call(f"c{n}", [], [f"v{n}"], f"model-{n}") for n in range(ASKED_MODELS + 5)]
        await manager.client.submit(session, made_up)
        await becomes(manager, len(made_up), "queued_calls")
        await becomes(manager, 5, "queued_calls", model="other")


async def test_ends_are_counted_by_how_they_were(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        if program.ref.call_id == "c-1":
            await finish(engine, program)
        elif program.ref.call_id == "c-2":
            engine.fail(program, "prompt_too_long")
        else:
            await hang(engine, program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        session = await open_with(manager, "a", "b", "c")
        await manager.client.ended(session, "a")
        await manager.client.ended(session, "b")
        await manager.client.close(session)
        for outcome in ("done", "prompt_too_long", "cancelled"):
            await becomes(manager, 1, "calls_ended_total", outcome=outcome)


async def test_a_call_queues_once_and_is_tried_again_often(memory: Store, bus: Bus) -> None:
    tries: list[str] = []

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        tries.append(program.ref.call_id)
        if len(tries) < 3:
            engine.fail(program, "value_unavailable")
        else:
            await finish(engine, program)

    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("a", ["x"], ["a"], "m")], {"x": "given"})
        async with attached(manager.address, bus, play=play):
            await manager.client.ended(session, "a")
        await becomes(manager, 2, "retries_total")
        assert seen(manager).value("parrot_manager_queue_seconds_count", model="m", objective="latency") == 1
        assert (
            0 < seen(manager).value("parrot_manager_queue_seconds_sum", model="m", objective="latency") < 10
        )


async def test_engines_serve_drain_fall_silent_and_are_lost(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, heartbeat_s=60, engine_grace_s=0) as manager:
        async with attached(manager.address, bus, play=hang) as engine:
            await becomes(manager, 1, "engines", model="m", state="serving")
            engine.say(draining=engine_pb2.Draining())
            await becomes(manager, 1, "engines", model="m", state="draining")
            assert seen(manager).value("parrot_manager_engines", model="m", state="serving") == 0
            await engine.leave()
            await becomes(manager, 0, "engines", model="m")
        assert seen(manager).value("parrot_manager_engines_lost_total") == 0
        async with attached(manager.address, bus, play=hang) as engine:
            await becomes(manager, 1, "engines", model="m", state="serving")
            engine.kill()
            await becomes(manager, 1, "engines_lost_total")


async def test_an_engine_that_says_nothing_is_silent(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, heartbeat_s=0.02) as manager, attached(manager.address, bus):
        await becomes(manager, 1, "engines", model="m", state="silent")
        assert seen(manager).value("parrot_manager_engines", model="m", state="serving") == 0


async def test_rpcs_are_counted_by_how_they_end(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        await manager.client.open()
        with pytest.raises(Fault):
            await manager.client.session("s00-0000000000000000")
        await becomes(manager, 1, "rpc_seconds_count", method="CreateSession", code="OK")
        await becomes(manager, 1, "rpc_seconds_count", method="GetSession", code="NOT_FOUND")
        await becomes(manager, 1, "refused_total", type="not_found")
        assert seen(manager).value("parrot_manager_decision_seconds_count") > 0


async def test_a_commit_that_hangs_is_seen_waiting(bus: Bus) -> None:
    goes_on = asyncio.Event()

    class Slow(MemoryStore):
        async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
            await goes_on.wait()
            await super().commit(session_id, changes, epoch)

    async with serving(Slow(), bus) as manager, attached(manager.address, bus):
        session = await open_with(manager, "a")
        await becomes(manager, 1, "outbox_waiting")
        await eventually(lambda: seen(manager).value("parrot_manager_outbox_oldest_seconds") > 0.02)
        goes_on.set()
        await manager.client.ended(session, "a")
        await becomes(manager, 0, "outbox_waiting")
        assert seen(manager).value("parrot_manager_outbox_oldest_seconds") == 0


async def test_shards_and_the_lease_are_told(bus: Bus) -> None:
    store = CutStore(MemoryStore())
    async with serving(store, bus, lease_s=0.4, renew_s=0.1) as manager:
        await becomes(manager, 16, "shards")
        await becomes(manager, 1, "lease_valid")
        store.cut.away = True
        await becomes(manager, 0, "lease_valid")


async def test_what_a_dead_manager_left_is_a_takeover_and_what_it_gave_back_is_not(
    memory: Store, bus: Bus
) -> None:
    quick = {"lease_s": 0.4, "renew_s": 0.1}
    async with serving(memory, bus, manager_id="m-1", **quick) as first:
        await becomes(first, 16, "shards")
        assert seen(first).value("parrot_manager_takeovers_total") == 0
        async with serving(memory, bus, manager_id="m-2", **quick) as second:
            await becomes(second, 8, "shards")
            assert seen(second).value("parrot_manager_takeovers_total") == 0
        await becomes(first, 8, "takeovers_total")


async def test_operations_on_the_store_are_timed_and_their_troubles_counted(
    postgres: PostgresServer, database_url: str, bus: Bus
) -> None:
    await schema.migrate(database_url, 10)
    metrics = ManagerMetrics()
    async with opened(database_url, 1.5, observer=metrics) as store, serving(store, bus) as manager:
        session = await manager.client.open()
        timed = partial(collected, metrics.registry)

        def was_timed(operation: str) -> bool:
            return timed().value("parrot_manager_store_seconds_count", operation=operation) >= 1

        for operation in ("insert_session", "lease join", "lease renew", "unpurged"):
            await eventually(partial(was_timed, operation))
        before = timed().value("parrot_manager_store_errors_total")
        postgres.stop()
        try:
            with pytest.raises(Fault) as caught:
                await manager.client.submit(session, [call("a", [], ["a"])])
            assert caught.value.kind is errors.UNAVAILABLE
        finally:
            postgres.start()
        assert timed().value("parrot_manager_store_errors_total") > before
