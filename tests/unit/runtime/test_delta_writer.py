"""The delta writer: what an engine step adds travels together, and nothing waits for long."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.support.eventually import eventually

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.writer import DeltaWriter

pytestmark = pytest.mark.anyio


class Wire:
    """A connection that keeps what is published."""

    def __init__(self) -> None:
        self.messages: list[values_pb2.StepDeltas] = []

    async def publish(self, _: str, payload: bytes, **__: object) -> None:
        self.messages.append(values_pb2.StepDeltas.FromString(payload))

    def variables(self) -> list[list[str]]:
        """Whose text each message brought."""
        return [[delta.variable_id for delta in message.deltas] for message in self.messages]

    def bus(self) -> Bus:
        return Bus(cast("Any", self), cast("Any", None))


def append(
    writer: DeltaWriter, variable_id: str, offset_bytes: int, session: str = "x", *, hurried: bool = False
) -> None:
    writer.append(
        f"sv.delta.{session}",
        variable_id=variable_id,
        call_id="c",
        attempt=1,
        offset_bytes=offset_bytes,
        text="a",
        hurried=hurried,
    )


async def test_outputs_that_come_in_turns_of_one_step_travel_in_one_message() -> None:
    wire = Wire()

    async def output(number: int) -> None:
        # The backend hands a large batch over in several turns of the loop.
        for _ in range(number // 64):
            await asyncio.sleep(0)
        append(writer, f"v{number}", 0)

    async with DeltaWriter(wire.bus(), "e") as writer:
        await asyncio.gather(*(output(number) for number in range(256)))
        await eventually(lambda: wire.messages)
        assert [len(message.deltas) for message in wire.messages] == [256]


async def test_text_is_sent_though_more_comes_in_every_turn_of_the_loop() -> None:
    wire = Wire()
    async with DeltaWriter(wire.bus(), "e") as writer:
        for offset in range(200):
            append(writer, "v", offset)
            await asyncio.sleep(0)
        sent = [delta.offset_bytes for message in wire.messages for delta in message.deltas]
    assert sent == list(range(len(sent)))
    assert len(sent) > 100


async def test_text_waits_for_more_until_the_interval_is_over() -> None:
    wire = Wire()
    loop = asyncio.get_running_loop()
    async with DeltaWriter(wire.bus(), "e", interval_s=0.2) as writer:
        append(writer, "v", 0)
        await eventually(lambda: wire.messages)
        began = loop.time()
        for offset in range(1, 11):
            append(writer, "v", offset)
            await asyncio.sleep(0.005)
        await eventually(lambda: len(wire.messages) > 1)
        took_s = loop.time() - began
    assert [[delta.offset_bytes for delta in message.deltas] for message in wire.messages] == [
        [0],
        list(range(1, 11)),
    ]
    assert took_s > 0.15


async def test_hurried_text_takes_along_what_its_session_has_and_nothing_else() -> None:
    wire = Wire()
    async with DeltaWriter(wire.bus(), "e", interval_s=60.0) as writer:
        append(writer, "first", 0)
        await eventually(lambda: wire.messages)
        append(writer, "a", 0, "one")
        append(writer, "b", 0, "other")
        append(writer, "c", 0, "one", hurried=True)
        await eventually(lambda: len(wire.messages) > 1)
        await asyncio.sleep(0.02)
        assert wire.variables() == [["first"], ["a", "c"]]
        append(writer, "d", 0, "one")
        await writer.flush("sv.delta.other")
        assert wire.variables()[2:] == [["b"]]
    # What is left goes at the end.
    assert wire.variables()[3:] == [["d"]]


async def test_with_no_interval_each_step_is_sent() -> None:
    wire = Wire()
    async with DeltaWriter(wire.bus(), "e") as writer:
        for offset in range(5):
            append(writer, "v", offset)
            await eventually(lambda: wire.messages)
            assert [delta.offset_bytes for delta in wire.messages.pop().deltas] == [offset]
            assert wire.messages == []
