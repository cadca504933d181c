"""Calls that the client runs, on a real database and a real bus; workers and managers die in the middle."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.manager.test_manager_blocks import final, play
from tests.support.fake_engine import attached
from tests.support.manager import Client, call, eventually, native, serving

from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

DONE = common_pb2.CALL_STATE_DONE
FAILED = common_pb2.CALL_STATE_FAILED


async def refused(work: object) -> Fault:
    """Why something is refused."""
    with pytest.raises(Fault) as caught:
        await work  # type: ignore[misc]
    return caught.value


async def failure_of(client: Client, session: str, call_id: str = "c-1") -> common_pb2.Failure:
    """Why a call failed."""

    async def look() -> common_pb2.Failure | None:
        found = {one.id: one for one in (await client.session(session)).calls}[call_id]
        return found.failure if found.state == FAILED else None

    found: common_pb2.Failure = await eventually(look)
    return found


async def test_a_worker_runs_a_node_of_the_graph(store: Store, bus: Bus) -> None:
    calls = [call("shout", ["a"], ["b"]), native("f", ["b"], ["c"]), call("shout", ["c"], ["d"])]
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        client = manager.client
        session = await client.open()
        assert (await refused(client.claim(session, "c-2"))).kind is errors.NOT_FOUND
        await client.submit(session, calls, {"a": "hey"})
        assert await client.claim(session, "c-2") == {"b": "HEY"}
        shown = (await client.session(session)).calls[1]
        assert (shown.native, shown.engine_id, shown.state) == (
            "client",
            "client/w",
            common_pb2.CALL_STATE_RUNNING,
        )
        assert await client.renew(session, "c-2") == 15_000
        assert await client.complete(session, "c-2", c="fine") == DONE
        assert (await client.ended(session, "d")).value == "FINE"
        assert (await final(bus, session, "c")).text == "fine"


async def test_whoever_waits_hears_at_once_when_the_inputs_come_or_the_call_ends(
    store: Store, bus: Bus
) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [native("f", ["b"], ["c"]), call("x", [], ["b"])])
        assert await client.claim(session, wait_ms=0) is None
        waiting = asyncio.create_task(client.claim(session, wait_ms=20_000))
        await eventually(lambda: _waits(manager.shell.waiters, session))
        await client.cancel(session, "c-2")
        fault = await asyncio.wait_for(refused(waiting), 5)
        assert (fault.kind, fault.cause_type) == (errors.CLAIM_LOST, "cancelled")


async def _waits(waiters: object, session_id: str) -> bool:
    return bool(getattr(waiters, "_waiting").get(session_id))  # noqa: B009 - of the manager's insides


async def test_one_worker_gets_a_call_however_many_ask(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [native("f", ["a"], ["b"])], {"a": "x"})
        asked = [client.claim(session, worker=f"w{place}") for place in range(8)]
        got = await asyncio.gather(*asked, return_exceptions=True)
        won = [place for place, answer in enumerate(got) if answer == {"a": "x"}]
        lost = [answer for answer in got if isinstance(answer, Fault)]
        assert (len(won), len(lost)) == (1, 7)
        assert {fault.kind for fault in lost} == {errors.CLAIM_LOST}
        assert await client.claim(session, worker=f"w{won[0]}") == {"a": "x"}


async def test_a_claim_and_its_result_survive_the_managers_death(store: Store, bus: Bus) -> None:
    calls = [native("f", ["a"], ["b"]), call("shout", ["b"], ["c"])]
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, calls, {"a": "x"})
        assert await manager.client.claim(session) == {"a": "x"}
    async with serving(store, bus) as manager:
        client = manager.client
        assert (await refused(client.claim(session, worker="other"))).kind is errors.CLAIM_LOST
        assert await client.claim(session) == {"a": "x"}
        assert await client.complete(session, b="made") == DONE
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        client = manager.client
        assert await client.complete(session, b="made") == DONE
        assert (await refused(client.complete(session, worker="other", b="made"))).kind is errors.CLAIM_LOST
        assert (await client.ended(session, "c")).value == "MADE"
        assert (await final(bus, session, "b")).text == "made"


async def test_a_claim_outlives_the_manager_however_long_its_condition_takes_to_read(
    store: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = native("f", ["a"], ["b"])
    made.when.CopyFrom(pb.Condition(variable_id="a", empty=False))
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [made], {"a": "x"})
        assert await manager.client.claim(session) == {"a": "x"}

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "read_values", never)
    monkeypatch.setattr(store, "read_value", never)
    async with serving(store, bus) as manager:
        assert await manager.client.renew(session) == 15_000
        assert await manager.client.complete(session, b="made") == DONE


async def test_a_manager_that_dies_behind_the_commit_tells_the_value_all_the_same(
    store: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [native("f", ["a"], ["b"])], {"a": "x"})
        await manager.client.claim(session)

        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(manager.shell.values, "publish_value", never)
        assert await manager.client.complete(session, b="made") == DONE
    async with serving(store, bus):
        assert (await final(bus, session, "b")).text == "made"


async def test_a_client_that_is_gone_fails_its_calls_in_time(store: Store, bus: Bus) -> None:
    calls = [native("f", [], ["b"], timeout_ms=50), native("g", [], ["c"]), call("x", ["c"], ["d"])]
    async with serving(store, bus, claim_s=0.2) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, calls)
        await client.claim(session, "c-2")
        never_claimed = await failure_of(client, session, "c-1")
        assert (never_claimed.type, "no worker" in never_claimed.message) == ("client_lost", True)
        gone = await failure_of(client, session, "c-2")
        assert (gone.type, gone.may_retry, "'w'" in gone.message) == ("client_lost", True, True)
        fault = await refused(client.renew(session, "c-2"))
        assert (fault.kind, fault.cause_type) == (errors.CLAIM_LOST, "client_lost")
        reader = (await client.ended(session, "d")).variable.failure
        assert (reader.type, reader.cause_type, reader.cause_call_id) == (
            "upstream_failed",
            "client_lost",
            "c-2",
        )


async def test_a_function_that_fails_says_why(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [native("f", [], ["b"])])
        await client.claim(session)
        assert await client.complete(session, error="ZeroDivisionError: division by zero\0") == FAILED
        assert await client.complete(session, error="again") == FAILED
        failure = await failure_of(client, session)
        assert (failure.type, failure.message) == (
            "native_failed",
            "ZeroDivisionError: division by zero\u2400",
        )


async def test_transforms_apply_on_both_sides(store: Store, bus: Bus) -> None:
    made = native("f", ["a"], ["b"])
    made.segments[0].input.transforms.append("json:name")
    made.segments[1].output.transforms.extend(["strip", "upper"])
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [made], {"a": '{"name": "kea"}'})
        assert await client.claim(session) == {"a": "kea"}
        assert await client.complete(session, b=" kea ") == DONE
        assert (await client.get(session, "b")).value == "KEA"


async def test_a_transform_that_does_not_apply_fails_the_call(store: Store, bus: Bus) -> None:
    before, behind = native("f", ["a"], ["b"]), native("g", ["a"], ["c"])
    before.segments[0].input.transforms.append("json:name")
    behind.segments[1].output.transforms.append("json:name")
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [before, behind], {"a": "kakapo"})
        fault = await refused(client.claim(session, "c-1"))
        assert (fault.kind, fault.cause_type) == (errors.CLAIM_LOST, "transform_failed")
        assert (await client.claim(session, "c-2")) == {"a": "kakapo"}
        assert await client.complete(session, "c-2", c="kakapo") == FAILED
        for call_id, name in (("c-1", "'a'"), ("c-2", "'c'")):
            failure = await failure_of(client, session, call_id)
            assert failure.type == "transform_failed"
            assert name in failure.message
            assert "kakapo" not in failure.message


async def test_a_result_that_is_none_is_refused_and_the_call_goes_on(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        await client.submit(session, [native("f", [], ["b", "c"])])
        early = await refused(client.complete(session, b="x", c="y"))
        assert early.kind is errors.CLAIM_LOST
        await client.claim(session)
        for outputs, field in (({"b": "x"}, "outputs.c"), ({"b": "x", "c": "y", "d": "z"}, "outputs.d")):
            fault = await refused(client.complete(session, **outputs))
            assert (fault.kind, fault.field) == (errors.INVALID_REQUEST, field)
        fault = await refused(client.complete(session, b="x", c="y" * (limits.VALUE_BYTES + 1)))
        assert (fault.kind, fault.field) == (errors.TOO_LARGE, "outputs.c")
        assert await client.complete(session, b="x", c="") == DONE


async def test_inputs_that_are_too_much_for_a_worker_fail_the_call(store: Store, bus: Bus) -> None:
    names = [f"v{place}" for place in range(5)]
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open()
        for name in names:
            await client.set(session, name, "x" * limits.VALUE_BYTES)
        await client.submit(session, [native("f", names, ["b"])])
        fault = await refused(client.claim(session))
        assert (fault.kind, fault.cause_type) == (errors.CLAIM_LOST, "too_large")


async def test_another_tenants_calls_are_not_there(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [native("f", [], ["b"])])
        stranger = Client(manager.client.channel, "stranger")
        for ask in (stranger.claim, stranger.renew, stranger.complete):
            assert (await refused(ask(session))).kind is errors.NOT_FOUND
        assert await manager.client.claim(session) == {}


async def test_code_runs_on_the_server_only_if_its_operator_lets_it(store: Store, bus: Bus) -> None:
    made = call("f", [], ["b"])
    del made.segments[0]
    made.native.sandbox.source = "def f():\n    return 'x'\n"
    made.native.sandbox.entry = "f"
    body = pb.NewBlock(
        map=pb.Map(
            list_variable_id="list",
            form=pb.ListForm(lines=True),
            item_variable_id="item",
            body=[made],
            collected=[pb.Collected(body_variable_id="b", variable_id="all", name="all")],
        )
    )
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        fault = await refused(manager.client.submit(session, [made]))
        assert (fault.kind, fault.field) == (errors.INVALID_REQUEST, "calls[0].native.kind")
        assert "PARROT_SANDBOX" in fault.message
        fault = await refused(manager.client.submit(session, [], {"list": "x"}, blocks=[body]))
        assert fault.field == "blocks[0].map.body[0].native.kind"
    async with serving(store, bus, sandbox=True, engine_wait_s=0.1) as manager:
        await manager.client.submit(session, [made])
        assert (await failure_of(manager.client, session)).type == "no_engine"


async def test_a_prompt_does_not_go_to_a_sandbox(store: Store, bus: Bus) -> None:
    async with (
        serving(store, bus, engine_wait_s=0.2) as manager,
        attached(manager.address, bus, play=play, model="python"),
    ):
        client = manager.client
        await client.engine_ready()
        session = await client.open()
        fault = await refused(client.submit(session, [call("f", [], ["a"], model="python")]))
        assert fault.kind is errors.UNKNOWN_MODEL
        await client.submit(session, [call("f", [], ["a"])])
        assert (await failure_of(client, session)).type == "no_engine"
        assert await client.models() == []
