"""Graphs that unfold, on a real database and a real bus; managers die in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.protobuf import json_format
from tests.support.fake_engine import FakeEngine, attached
from tests.support.manager import call, eventually, serving
from tests.support.managers import Site, site

from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio

DONE = common_pb2.CALL_STATE_DONE
CANCELLED = common_pb2.VARIABLE_STATE_CANCELLED
ITEMS = 12


def block(**kinds: Any) -> pb.NewBlock:
    """A block as JSON has it."""
    return json_format.ParseDict(kinds, pb.NewBlock())


def spoken(name: str, inputs: list[str], output: str) -> dict[str, Any]:
    """A call as JSON has it."""
    made: dict[str, Any] = json_format.MessageToDict(call(name, inputs, [output]))
    return made


def mapped(**more: Any) -> pb.NewBlock:
    """Shouts each item of `list`; `all` has them all."""
    kind = {
        "listVariableId": "list",
        "form": {"jsonArray": True},
        "itemVariableId": "item",
        "body": [spoken("shout", ["item"], "loud")],
        "collected": [{"bodyVariableId": "loud", "variableId": "all", "name": "all"}],
        **more,
    }
    return block(name="shouts", map=kind)


def looped(**more: Any) -> pb.NewBlock:
    """Lets `start` grow until it is long enough; `grown` has the last."""
    kind = {
        "body": [spoken("grow", ["text"], "longer")],
        "carried": [{"bodyVariableId": "text", "initialVariableId": "start", "nextVariableId": "longer"}],
        "until": {"variableId": "longer", "matches": "a{5}"},
        "maxRounds": 10,
        "results": [{"bodyVariableId": "longer", "variableId": "grown", "name": "grown"}],
        "mustHold": True,
        **more,
    }
    return block(name="grows", loop=kind)


async def text_of(engine: FakeEngine, program: engine_pb2.RunProgram) -> str:
    """What the program's function makes of its inputs."""
    filled = [op.fill.variable for op in program.operations if op.HasField("fill")]
    texts: list[str] = []
    for source in filled:
        if source.variable_id:
            record = await engine.finals.read(source.final_subject)
            assert record is not None
            texts.append(record.text or "")
    functions: dict[str, Callable[[], str]] = {
        "shout": lambda: "".join(texts).upper(),
        "grow": lambda: texts[0] + "a",
        "list": lambda: json.dumps([f"item {n}" for n in range(ITEMS)]),
        "join": lambda: "+".join(texts),
    }
    return functions[program.name]()


async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Runs plain functions."""
    await engine.publish(program, await text_of(engine, program))
    engine.done(program)


async def test_blocks_unfold_on_the_real_store_and_bus(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play, capacity=8):
        session = await manager.client.open()
        ids = await manager.client.submit(
            session,
            [call("list", [], ["list"]), call("join", ["all", "grown"], ["end"])],
            {"start": "x"},
            blocks=[mapped(), looped()],
        )
        assert ids == ["c-1", "c-2", "b-3", "b-1004"]
        shouted = [f"ITEM {n}" for n in range(ITEMS)]
        expected = json.dumps(shouted, separators=(",", ":")) + "+xaaaaa"
        assert (await manager.client.ended(session, "end")).value == expected
        graph = await manager.client.session(session)
        shouts, grows = graph.blocks
        assert (shouts.id, shouts.kind, shouts.name, shouts.instances) == ("b-3", "map", "shouts", ITEMS)
        assert (grows.id, grows.kind, grows.instances) == ("b-1004", "loop", 5)
        assert shouts.state == grows.state == pb.BLOCK_STATE_DONE
        assert [edge.variable_id for edge in shouts.inputs] == ["list"]
        assert shouts.accepted_unix_ms <= shouts.unfolded_unix_ms <= shouts.ended_unix_ms
        assert sum(one.block_id == "b-3" for one in graph.calls) == ITEMS
        made = {variable.id: variable for variable in graph.variables}
        assert made["all"].producer_block_id == "b-3"
        assert (await final(bus, session, "all")).text == json.dumps(shouted, separators=(",", ":"))


async def test_conditions_skip_and_a_selection_goes_round_them(store: Store, bus: Bus) -> None:
    one, two = call("join", ["a"], ["b"]), call("shout", ["a"], ["c"])
    one.when.CopyFrom(pb.Condition(variable_id="a", transforms=["json:ok"], equals="true"))
    chosen = block(select={"fromVariableIds": ["b", "c"], "variableId": "d", "name": "d"})
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [one, two], {"a": '{"ok": false}'}, blocks=[chosen])
        assert (await manager.client.ended(session, "d")).value == '{"OK": FALSE}'
        skipped = (await manager.client.ended(session, "b")).variable
        assert (skipped.state, skipped.failure.type) == (CANCELLED, "skipped")
        assert (await final(bus, session, "b")).cancelled is not None
        await manager.client.close(session)
        graph = await manager.client.session(session)
        assert [one.kind for one in graph.blocks] == ["select"]


async def test_a_retried_validation_fails_openly_when_it_never_holds(store: Store, bus: Bus) -> None:
    until = {"variableId": "longer", "jsonSchema": '{"type": "object", "required": ["year"]}'}
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [], {"start": "x"}, blocks=[looped(until=until, maxRounds=3)])
        failure = (await manager.client.ended(session, "grown")).variable.failure
        assert (failure.type, failure.call_id) == ("condition_failed", "b-1")
        assert "held in none of its 3 rounds" in failure.message


@pytest.mark.parametrize("kill_after", [1, 4, 9, 14])
async def test_a_manager_that_dies_in_the_middle_loses_and_repeats_nothing(
    store: Store, bus: Bus, kill_after: int
) -> None:
    seen: list[str] = []
    played: list[str] = []
    held = asyncio.Event()

    def hold() -> None:
        # What is cut off in the middle is run again, and rightly: the manager dies between programs.
        if len(seen) >= kill_after and len(played) == len(seen):
            held.set()

    async def some(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        if len(seen) >= kill_after:
            hold()
            await asyncio.Event().wait()
        seen.append(program.ref.call_id)
        await play(engine, program)
        played.append(program.ref.call_id)
        hold()

    async with serving(store, bus) as manager, attached(manager.address, bus, play=some, capacity=2):
        session = await manager.client.open()
        await manager.client.submit(
            session,
            [call("list", [], ["list"]), call("join", ["all", "grown"], ["end"])],
            {"start": "x"},
            blocks=[mapped(), looped()],
        )
        await asyncio.wait_for(held.wait(), 20)

    async def rest(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        seen.append(program.ref.call_id)
        await play(engine, program)

    async with serving(store, bus) as manager, attached(manager.address, bus, play=rest, engine_id="e-2"):
        shouted = json.dumps([f"ITEM {n}" for n in range(ITEMS)], separators=(",", ":"))
        assert (await manager.client.ended(session, "end", 40)).value == f"{shouted}+xaaaaa"
        assert len(seen) == len(set(seen)) == 2 + ITEMS + 5
        graph = await manager.client.session(session)
        assert {one.state for one in graph.calls} == {DONE}


async def test_what_is_wrong_with_a_block_is_told_when_it_is_submitted(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        with pytest.raises(Fault) as caught:
            await manager.client.submit(session, [], {"list": "[]"}, blocks=[mapped(maxItems=5000)])
        assert (caught.value.kind, caught.value.field) == (errors.INVALID_BLOCK, "blocks[0].map.max_items")
        with pytest.raises(Fault) as caught:
            await manager.client.submit(session, [], blocks=[mapped()])
        assert (caught.value.kind, caught.value.variable_id) == (errors.UNPRODUCED_VARIABLE, "list")
        assert not (await manager.client.session(session)).calls


async def test_a_batch_with_blocks_that_is_sent_again_is_the_same(store: Store, bus: Bus) -> None:
    sent: dict[str, Any] = {"values": {"start": "x"}, "blocks": [looped()], "key": "once"}
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        ids = await manager.client.submit(session, [call("list", [], ["list"])], **sent)
        assert ids == ["c-1", "b-2"]
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        assert await manager.client.submit(session, [call("list", [], ["list"])], **sent) == ids
        await manager.client.ended(session, "grown")
        assert len((await manager.client.session(session)).blocks) == 1


async def test_cancelling_a_block_ends_its_instances(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus, play=hold) as engine:
        session = await manager.client.open()
        await manager.client.submit(session, [], {"list": "[1, 2]"}, blocks=[mapped()])
        await eventually(_running(engine, 2))
        request = pb.CancelCallsRequest(tenant="default", session_id=session, call_ids=["b-1"])
        assert list((await manager.client._ask("CancelCalls", request)).call_ids) == ["c-2", "c-3"]
        assert (await manager.client.ended(session, "all")).variable.failure.type == "cancelled"
        await eventually(_cancelled(engine, 2))


@pytest.fixture
async def place(database_url: str, nats_url: str) -> AsyncIterator[Site]:
    """A manager and a simulated engine, as processes."""
    await schema.migrate(database_url, 10)
    async with site(database_url, nats_url) as made:
        await made.manager("m-1")
        yield made


@pytest.mark.timeout(120)
async def test_a_killed_manager_process_goes_on_with_a_map_of_a_simulated_engine(place: Site) -> None:
    listing = call("list", [], ["list"])
    texts = [json.dumps([f"topic {n}" for n in range(ITEMS)])]
    choice = common_pb2.Guide(choice=common_pb2.Choice(texts=texts))
    listing.segments[-1].output.sampling.guide.CopyFrom(choice)
    each = call("describe", ["item"], ["loud"])
    each.segments[-1].output.sampling.CopyFrom(
        common_pb2.Sampling(max_tokens=40, min_tokens=40, temperature=0)
    )
    unfolding = mapped(body=[json_format.MessageToDict(each)])
    await place.engine("e-1", "--sim-step-ms", "10")
    session = await place.open()
    await place.ask(lambda client: client.submit(session, [listing], blocks=[unfolding], key="once"))

    async def begun() -> bool:
        graph = await place.session(session)
        return (
            sum(one.block_id != "" and one.state >= common_pb2.CALL_STATE_RUNNING for one in graph.calls) > 1
        )

    await eventually(begun, 20)
    manager = place.managers[0]
    await manager.kill()
    await manager.start()

    async def done() -> bool:
        graph = await place.session(session)
        return any(v.id == "all" and v.state == common_pb2.VARIABLE_STATE_READY for v in graph.variables)

    await eventually(done, 60)
    got = await place.ask(lambda client: client.get(session, "all"))
    assert len(json.loads(got.value)) == ITEMS
    graph = await place.session(session)
    assert {one.state for one in graph.calls} == {DONE}
    assert {one.attempt for one in graph.calls} == {1}, "an engine that goes on is let go on"


async def final(bus: Bus, session_id: str, variable_id: str) -> FinalRecord:
    """A variable's end on the bus, once it is there."""

    async def look() -> FinalRecord | None:
        return await Finals(bus).read(SessionSubjects("default", session_id).final(variable_id))

    found: FinalRecord = await eventually(look)
    return found


async def hold(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Never comes to an end."""
    await asyncio.Event().wait()


def _running(engine: FakeEngine, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(engine.programs) == count

    return look


def _cancelled(engine: FakeEngine, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(engine.cancelled) == count

    return look
