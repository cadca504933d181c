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

    def bus(self) -> Bus:
        return Bus(cast("Any", self), cast("Any", None))


def append(writer: DeltaWriter, variable_id: str, offset_bytes: int) -> None:
    writer.append(
        "sv.delta.x", variable_id=variable_id, call_id="c", attempt=1, offset_bytes=offset_bytes, text="a"
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
