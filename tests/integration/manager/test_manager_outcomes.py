"""What comes of applications and calls is counted as it was: how long, whether in time, and how it ended."""

from __future__ import annotations

import pytest
from tests.integration.manager.test_manager_metrics import becomes, open_with, seen
from tests.support.eventually import eventually
from tests.support.fake_engine import FakeEngine, attached, finish, hang, outputs
from tests.support.manager import ManagerUnderTest, call, serving

from parrot_manager import clock
from parrot_manager.store.base import Store
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

LATENCY = pb.Criteria(kind=pb.OBJECTIVE_KIND_LATENCY)


def due_in(ms: int) -> pb.Criteria:
    """Somebody wants it so much later; negative: before now."""
    return pb.Criteria(kind=pb.OBJECTIVE_KIND_DEADLINE, deadline_unix_ms=clock.now_ms() + ms)


async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """As its outputs are named."""
    if any(sink.variable_id == "fail" for sink in outputs(program)):
        engine.fail(program, "prompt_too_long")
    else:
        await finish(engine, program)


async def ended(manager: ManagerUnderTest, session: str, *names: str) -> None:
    for name in names:
        await manager.client.ended(session, name)
    await manager.client.close(session)


async def test_a_done_call_tells_its_tokens_and_its_times(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, play=finish):
        await ended(manager, await open_with(manager, "a", "b"), "a", "b")
        done = {"gen_ai_request_model": "any", "gen_ai_provider_name": "parrot"}
        await eventually(lambda: seen(manager).value("gen_ai_server_request_duration_seconds_count") == 2)
        found = seen(manager)
        assert found.value("gen_ai_server_request_duration_seconds_count", error_type="", **done) == 2
        for kind, tokens in (("input", 7), ("output", 5)):
            assert found.value("gen_ai_client_token_usage_count", gen_ai_token_type=kind, **done) == 2
            assert found.value("gen_ai_client_token_usage_sum", gen_ai_token_type=kind) == 2 * tokens
        # Three ms of decode, five tokens: four between them.
        assert found.value("gen_ai_server_time_per_output_token_seconds_sum") == pytest.approx(2 * 0.003 / 4)
        took_s = found.value("gen_ai_server_request_duration_seconds_sum")
        assert 0 <= found.value("gen_ai_server_time_to_first_token_seconds_sum") <= took_s
        await becomes(manager, 1, "sessions_ended_total", outcome="closed")
        await becomes(manager, 1, "sessions_good_total")
        found = seen(manager)
        assert found.value("gen_ai_workflow_duration_seconds_count", error_type="") == 1
        assert found.value("gen_ai_workflow_duration_seconds_sum") < 10


async def test_a_failed_call_tells_why_and_its_session_is_no_good_one(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        await ended(manager, await open_with(manager, "a", "fail"), "a", "fail")
        await becomes(manager, 1, "sessions_ended_total", outcome="closed")
        found = seen(manager)
        for error in ("", "prompt_too_long"):
            assert found.value("gen_ai_server_request_duration_seconds_count", error_type=error) == 1
        assert found.value("gen_ai_server_time_to_first_token_seconds_count") == 1
        assert found.value("parrot_manager_sessions_good_total") == 0


async def test_a_model_of_any_name_that_nobody_serves_makes_no_label(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, engine_wait_s=0.05) as manager:
        await ended(manager, await open_with(manager, "a", model="no such model"), "a")
        await eventually(lambda: seen(manager).value("gen_ai_server_request_duration_seconds_count") == 1)
        labels = {"gen_ai_request_model": "other", "error_type": "no_engine"}
        assert seen(manager).value("gen_ai_server_request_duration_seconds_count", **labels) == 1


async def test_a_session_that_is_cancelled_has_done_nobody_good(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, play=hang):
        session = await open_with(manager, "a")
        await becomes(manager, 1, "calls", state="running")
        await manager.client.close(session)
        await becomes(manager, 1, "sessions_ended_total", outcome="cancelled")
        found = seen(manager)
        assert found.value("gen_ai_workflow_duration_seconds_count", error_type="cancelled") == 1
        assert found.value("parrot_manager_sessions_good_total") == 0
        assert found.value("parrot_manager_deadlines_total") == 0


@pytest.mark.parametrize(("due_ms", "met"), [(60_000, "yes"), (-1_000, "no")])
async def test_a_deadline_is_met_or_not_and_decides_whether_a_session_was_good(
    due_ms: int, met: str, memory: Store, bus: Bus
) -> None:
    async with serving(memory, bus) as manager:
        session = await open_with(manager, "a", "b")
        await manager.client.get(session, "a", criteria=due_in(due_ms))
        await manager.client.get(session, "b", criteria=LATENCY)
        async with attached(manager.address, bus, play=finish):
            await ended(manager, session, "a", "b")
        await becomes(manager, 1, "sessions_ended_total", outcome="closed")
        assert seen(manager).value("parrot_manager_deadlines_total", met=met) == 1
        assert seen(manager).value("parrot_manager_deadlines_total") == 1
        assert seen(manager).value("parrot_manager_sessions_good_total") == (met == "yes")


async def test_a_failed_output_misses_its_deadline_and_a_cancelled_one_has_none(
    memory: Store, bus: Bus
) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call(name, [], [name]) for name in ("fail", "stop")])
        for name in ("fail", "stop"):
            await manager.client.get(session, name, criteria=due_in(60_000))
        await manager.client.cancel(session, "c-2")
        async with attached(manager.address, bus, play=play):
            await ended(manager, session, "fail", "stop")
        await becomes(manager, 1, "deadlines_total", met="no")
        assert seen(manager).value("parrot_manager_deadlines_total") == 1


async def test_what_a_lost_engine_had_published_counts_as_done_and_tells_no_times(
    memory: Store, bus: Bus
) -> None:
    async def publish(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program)
        engine.kill()

    async with serving(memory, bus, engine_grace_s=0) as manager:
        async with attached(manager.address, bus, play=publish):
            await ended(manager, await open_with(manager, "a"), "a")
        await eventually(lambda: seen(manager).value("gen_ai_server_request_duration_seconds_count") == 1)
        found = seen(manager)
        assert found.value("parrot_manager_sessions_good_total") == 1
        assert found.value("gen_ai_server_time_to_first_token_seconds_count") == 0
        assert found.value("gen_ai_client_token_usage_count") == 0


async def test_a_call_that_goes_on_elsewhere_is_a_failover(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, engine_grace_s=0) as manager:
        session = await open_with(manager, "a")
        async with attached(manager.address, bus, play=hang) as engine:
            await becomes(manager, 1, "calls", state="running")
            engine.kill()
            await becomes(manager, 1, "engines_lost_total")
        assert seen(manager).value("parrot_manager_failovers_total") == 0
        async with attached(manager.address, bus, play=finish, engine_id="e-2"):
            await ended(manager, session, "a")
        await becomes(manager, 1, "failovers_total")
