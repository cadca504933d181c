"""A session's rows are enough: what they give back is what the manager had in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format
from tests.support.fake_engine import FakeEngine, attached, finish, hang
from tests.support.manager import call, eventually, serving

from parrot_manager import clock
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import Call, CallState, Variable
from parrot_manager.core.state import LiveSession
from parrot_manager.restoring import restored
from parrot_manager.store.base import Store
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.ids import shard_of
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

SENT = {CallState.DISPATCHED, CallState.RUNNING}
NOT_SENT = {CallState.ACCEPTED, CallState.WAITING, CallState.READY}


async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Fails, hangs or is done, as its name says."""
    if program.name.startswith("hang"):
        await hang(engine, program)
    elif program.name.startswith("fail"):
        engine.fail(program, "prompt_too_long")
    else:
        await finish(engine, program)


def conditional(name: str, inputs: list[str], output: str, variable_id: str, contains: str) -> pb.NewCall:
    """A call that runs only when a variable's value contains something."""
    made = call(name, inputs, [output])
    made.when.CopyFrom(pb.Condition(variable_id=variable_id, contains=contains))
    return made


def mapped(body: str, collected: str) -> pb.NewBlock:
    """Calls `body` on each item of `list`."""
    inner = json_format.MessageToDict(call(body, ["item"], ["loud"]))
    kind: dict[str, Any] = {
        "listVariableId": "list",
        "form": {"jsonArray": True},
        "itemVariableId": "item",
        "body": [inner],
        "collected": [{"bodyVariableId": "loud", "variableId": collected, "name": "all"}],
    }
    return json_format.ParseDict({"name": "each", "map": kind}, pb.NewBlock())


CALLS = [
    call("one", ["a"], ["b"]),
    call("hang", ["b"], ["c"]),
    call("waits", ["b", "c"], ["d"]),
    call("fail", ["a"], ["e"]),
    call("follows", ["e"], ["f"]),
    conditional("holds", ["a"], "g", "b", "text of"),
    conditional("skipped", ["a"], "h", "b", "something else"),
    conditional("undecided", ["a"], "i", "c", "later"),
]
BLOCKS = [mapped("shout", "all"), mapped("hang shout", "never")]
ENDED = {"b", "e", "f", "g", "h", "all"}


async def test_the_rows_of_a_session_give_back_what_was_in_memory(store: Store, bus: Bus) -> None:
    async with (
        serving(store, bus) as manager,
        attached(manager.address, bus, play=play, capacity=32) as engine,
    ):
        await manager.client.engine_ready()
        session = await manager.client.open(label="kept", key="a key")
        await manager.client.submit(
            session, CALLS, {"a": "given \0", "list": '["x", "y", "z"]'}, key="batch", blocks=BLOCKS
        )
        live = manager.shell.machine.state.sessions[session]

        async def stands_still() -> bool:
            ended = {name for name in live.variables if name not in live.open_variables}
            hanging = [program for program in engine.programs if program.name.startswith("hang")]
            return ended >= ENDED and len(hanging) == 4

        await eventually(stands_still)
        await manager.shell.settled(session)
        (record,) = await store.load_live([shard_of(session)], 0)
        machine = Machine(manager.shell.settings.policy)
        machine.step(restored(record), clock.now_ms())
        again = machine.state.sessions[session]
        assert known(again) == known(live)
        machine.state.check_integrity()


def known(live: LiveSession) -> dict[str, object]:
    """What a session's next manager has to know, as far as it does not depend on who looks."""
    return {
        "session": live.session,
        "calls": {call_id: _of_call(one) for call_id, one in sorted(live.calls.items())},
        "variables": {name: _of_variable(one) for name, one in sorted(live.variables.items())},
        "blocks": live.blocks.all,
        "undecided": sorted(live.blocks.undecided),
        "missing": live.missing,
        "unfinished": sorted(live.unfinished),
        "open": sorted(live.open_variables),
        "attempts": live.attempts,
        "batches": live.batches,
        "next": live.next_number,
        "producers": {name: live.graph.get_producer(name) for name in sorted(live.variables)},
        "consumers": {name: _consumers(live, name) for name in sorted(live.variables)},
    }


def _of_call(one: Call) -> tuple[object, ...]:
    sent = one.state in SENT
    state = "sent" if sent else "not sent" if one.state in NOT_SENT else one.state.name
    # When a call became ready is stored with its dispatch; ended calls are not dressed again.
    ready_ms = one.ready_ms if state != "not sent" else 0
    dressed = (one.spec, one.shape, one.when) if not one.state.ended else ()
    bare = replace(one, state=CallState.ACCEPTED, ready_ms=ready_ms, value_retries=0, spec=b"")
    return state, bare, dressed


def _of_variable(one: Variable) -> Variable:
    return replace(one, published_ms=0)


def _consumers(live: LiveSession, name: str) -> list[str]:
    """Those that have not ended: only they are told of a value."""
    return sorted(one for one in live.graph.get_consumers(name) if one in live.unfinished)
