"""What calls have in common: shared contexts go out with programs, and are freed when nobody needs them."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import FakeEngine, attached, finish
from tests.support.manager import eventually, serving

from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

RULES = "Answer as the rules of the harbour want it, in order and without a word too many. " * 12


def asking(document: str, question: str, answer: str) -> pb.NewCall:
    """A call that begins with rules and a document, as others do."""
    pieces = [
        common_pb2.Segment(text=RULES),
        common_pb2.Segment(input=common_pb2.InputHole(name="document", variable_id=document)),
        common_pb2.Segment(text=question),
        common_pb2.Segment(output=common_pb2.OutputHole(name="answer", variable_id=answer)),
    ]
    return pb.NewCall(name="ask", segments=pieces)


def shared(program: engine_pb2.RunProgram) -> list[tuple[str, str]]:
    """A program's shared contexts, each with its parent."""
    fills = [op.fill for op in program.operations if op.HasField("fill")]
    return [(fill.context_id, fill.parent_context_id) for fill in fills if fill.HasField("shared")]


async def test_calls_that_begin_alike_share_contexts_which_are_freed_behind_the_last(
    memory: Store, bus: Bus
) -> None:
    go_on = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        contexts = [
            engine_pb2.SharedContext(context_id=name, prefix_hash=name, tokens=250, in_kv=True)
            for name, _ in shared(program)
        ]
        engine.say(contexts=engine_pb2.ContextsChanged(contexts=contexts))
        await go_on.wait()
        await finish(engine, program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        batch = [asking("document", f" Question {n}?", f"answer-{n}") for n in range(3)]
        await manager.client.submit(session, batch, {"document": "All ships leave at dawn. " * 40})
        await eventually(lambda: _all_sent(engine, 3))
        first, *others = (shared(program) for program in engine.programs)
        (rules, root), (document, parent) = first
        assert (root, parent) == ("", rules)
        assert others == [first, first]
        assert engine.freed == []
        go_on.set()
        for number in range(3):
            await manager.client.ended(session, f"answer-{number}")

        async def freed() -> bool:
            return document in engine.freed

        await eventually(freed)


async def test_what_an_engine_has_already_is_said_where_the_next_call_goes(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        await manager.client.submit(session, [asking("document", " One?", "one")], {"document": "Ships."})
        await manager.client.ended(session, "one")
        placed = (await manager.client.session(session)).calls[0]
        assert placed.placement.startswith(f"{engine.engine_id}: ")
        assert "tokens in KV" in placed.placement


async def _all_sent(engine: FakeEngine, count: int) -> bool:
    return len(engine.programs) == count
