"""Events outlive streams."""

from __future__ import annotations

import asyncio

import pytest

from parrot_engine.servicer.outbox import Outbox
from parrot_proto.engine.v1 import engine_pb2

pytestmark = pytest.mark.anyio

Sent = list[engine_pb2.AttachRequest]


def started(call_id: str) -> engine_pb2.AttachRequest:
    ref = engine_pb2.AttemptRef(session_id="s", call_id=call_id, attempt=1)
    return engine_pb2.AttachRequest(started=engine_pb2.AttemptStarted(ref=ref))


def done(call_id: str) -> engine_pb2.AttachRequest:
    ref = engine_pb2.AttemptRef(session_id="s", call_id=call_id, attempt=1)
    return engine_pb2.AttachRequest(done=engine_pb2.AttemptDone(ref=ref))


async def test_events_are_sent_in_order_until_the_outbox_is_closed() -> None:
    outbox, sent = Outbox(), Sent()

    async def write(event: engine_pb2.AttachRequest) -> None:
        sent.append(event)
        if event == done("c-1"):
            outbox.put(done("c-2"))
            outbox.close()

    outbox.put(started("c-1"))
    outbox.put(done("c-1"))
    async with asyncio.timeout(5):
        await outbox.send_all(write)
    assert sent == [started("c-1"), done("c-1"), done("c-2")]
    assert outbox.drained


async def test_an_event_that_no_stream_took_is_sent_by_the_next_one() -> None:
    outbox, sent = Outbox(), Sent()

    async def broken(event: engine_pb2.AttachRequest) -> None:
        raise ConnectionError

    async def write(event: engine_pb2.AttachRequest) -> None:
        sent.append(event)

    outbox.put(started("c-1"))
    outbox.put(done("c-1"))
    with pytest.raises(ConnectionError):
        await outbox.send_all(broken)
    assert [ref.call_id for ref in outbox.unsent_ends()] == ["c-1"]
    outbox.close()
    await outbox.send_all(write)
    assert sent == [started("c-1"), done("c-1")]
    assert outbox.unsent_ends() == []
