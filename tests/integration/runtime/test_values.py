"""Values on a real bus: written once, read from any offset, healed after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest
import uvloop
from tests.support.eventually import eventually
from tests.support.nats import NatsServer

from parrot_proto.common.v1 import common_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors, ids, limits
from parrot_runtime.errors import Fault
from parrot_runtime.values import bus as bus_module
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Chunk, Cursor, End, Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

pytestmark = pytest.mark.anyio
TEXT = "déjà vu 漢字 😀 "


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made


@pytest.fixture
def names() -> SessionSubjects:
    return SessionSubjects("default", ids.new_session_id())


async def read_all(cursor: Cursor) -> tuple[str, FinalRecord]:
    """The text a cursor yields up to the end."""
    text = ""
    while True:
        item = await cursor.next(5)
        assert item is not None, "nothing came"
        if isinstance(item, End):
            return text, item.record
        text += item.text


def write(writer: DeltaWriter, names: SessionSubjects, text: str, offset: int = 0, attempt: int = 1) -> int:
    writer.append(
        names.delta, variable_id="v", call_id="c-1", attempt=attempt, offset_bytes=offset, text=text
    )
    return offset + len(text.encode())


async def test_a_reader_hears_every_character_once_and_then_the_end(bus: Bus, names: SessionSubjects) -> None:
    feeds, finals = Feeds(bus), Finals(bus)
    async with feeds.session("default", names.session_id) as feed, DeltaWriter(bus, "e-1") as writer:
        offset = 0
        for char in TEXT * 20:
            offset = write(writer, names, char, offset)
        await writer.flush()
        record = FinalRecord("v", "c-1", 1, text=TEXT * 20)
        await finals.publish(names.final("v"), record)
        text, end = await read_all(feed.cursor("v"))
    assert text == TEXT * 20
    assert end.text == TEXT * 20


async def test_deltas_of_one_step_travel_in_one_message(bus: Bus, names: SessionSubjects) -> None:
    heard = await bus.client.subscribe(names.live_delta)
    async with DeltaWriter(bus, "e-1") as writer:
        for variable in ("a", "b", "c"):
            writer.append(
                names.delta, variable_id=variable, call_id="c-1", attempt=1, offset_bytes=0, text="x"
            )
        message = await heard.next_msg(timeout=5)
    assert [delta.variable_id for delta in values_pb2.StepDeltas.FromString(message.data).deltas] == [
        "a",
        "b",
        "c",
    ]


async def test_a_late_reader_gets_the_text_so_far(bus: Bus, names: SessionSubjects) -> None:
    async with DeltaWriter(bus, "e-1") as writer:
        offset = write(writer, names, "early ")
        await writer.flush()
        await bus.client.flush()
        async with Feeds(bus).session("default", names.session_id) as feed:
            cursor = feed.cursor("v")
            feed.catch_up()
            assert await cursor.next(5) == Chunk(0, "early ")
            write(writer, names, "late", offset)
            assert await cursor.next(5) == Chunk(6, "late")
            assert await cursor.next(0.01) is None


async def test_a_gap_is_filled_from_the_stream(bus: Bus, names: SessionSubjects) -> None:
    async with DeltaWriter(bus, "e-1") as writer:
        offset = write(writer, names, "one ")
        await writer.flush()
        await bus.client.flush()
        async with Feeds(bus).session("default", names.session_id) as feed:
            cursor = feed.cursor("v")
            write(writer, names, "two", offset)
            text = ""
            while text != "one two":
                item = await cursor.next(5)
                assert isinstance(item, Chunk)
                text += item.text


async def test_the_final_heals_deltas_that_were_lost(bus: Bus, names: SessionSubjects) -> None:
    async with Feeds(bus).session("default", names.session_id) as feed:
        await Finals(bus).publish(names.final("v"), FinalRecord("v", "c-1", 1, text="never streamed"))
        text, _ = await read_all(feed.cursor("v"))
    assert text == "never streamed"


async def test_what_was_offered_ahead_of_the_bus_is_not_what_later_readers_begin_with(
    bus: Bus, names: SessionSubjects
) -> None:
    feeds = Feeds(bus)
    async with feeds.session("default", names.session_id) as feed, DeltaWriter(bus, "e-1") as writer:
        feed.offer("v", 1, 0, "refused by the bus")
        feeds.renew(names.session_id)
        async with feeds.session("default", names.session_id) as anew:
            write(writer, names, "taken", attempt=2)
            assert await anew.cursor("v").next(5) == Chunk(0, "taken")
            assert await feed.cursor("v").next(5) == Chunk(0, "refused by the bus")
    assert feeds.open_feed(names.session_id) is None


async def test_a_superseded_attempt_is_not_heard(bus: Bus, names: SessionSubjects) -> None:
    async with Feeds(bus).session("default", names.session_id) as feed, DeltaWriter(bus, "e-1") as writer:
        offset = write(writer, names, "kept ", attempt=2)
        write(writer, names, "zombie", offset, attempt=1)
        write(writer, names, "on", offset, attempt=2)
        await writer.flush()
        await Finals(bus).publish(names.final("v"), FinalRecord("v", "c-1", 2, text="kept on"))
        text, _ = await read_all(feed.cursor("v"))
    assert text == "kept on"


@pytest.mark.parametrize("start", [0, 1, 3, 6])
async def test_a_reader_resumes_at_any_character(bus: Bus, names: SessionSubjects, start: int) -> None:
    async with Feeds(bus).session("default", names.session_id) as feed:
        await Finals(bus).publish(names.final("v"), FinalRecord("v", "c-1", 1, text="aé漢"))
        text, _ = await read_all(feed.cursor("v", start))
    assert text.encode() == "aé漢".encode()[start:]


@pytest.mark.parametrize("start", [2, 4, 5, 7, 9_999_999])
async def test_an_offset_that_is_none_is_refused(bus: Bus, names: SessionSubjects, start: int) -> None:
    async with Feeds(bus).session("default", names.session_id) as feed:
        await Finals(bus).publish(names.final("v"), FinalRecord("v", "c-1", 1, text="aé漢"))
        with pytest.raises(Fault) as caught:
            await read_all(feed.cursor("v", start))
    assert caught.value.kind is errors.INVALID_REQUEST


@pytest.mark.parametrize(
    "text", ["", "a\0b", "x" * limits.PART_BYTES, "漢" * 1_700_000, "x" * limits.VALUE_BYTES]
)
async def test_a_value_of_any_size_is_read_back_exactly(bus: Bus, names: SessionSubjects, text: str) -> None:
    finals = Finals(bus)
    await finals.publish(names.final("v"), FinalRecord("v", "c-1", 1, text=text))
    record = await finals.read(names.final("v"))
    assert record is not None
    assert record.text == text


async def test_a_large_value_reaches_a_live_reader(bus: Bus, names: SessionSubjects) -> None:
    text = "漢字" * 500_000
    async with Feeds(bus).session("default", names.session_id) as feed:
        await Finals(bus).publish(names.final("v"), FinalRecord("v", text=text))
        got, _ = await read_all(feed.cursor("v"))
    assert got == text


async def test_a_failure_and_a_cancellation_end_a_variable(bus: Bus, names: SessionSubjects) -> None:
    finals = Finals(bus)
    failure = Fault(errors.ENGINE_LOST, "engine e-1 died", call_id="c-1").to_failure()
    await finals.publish(names.final("f"), FinalRecord("f", "c-1", 1, failure=failure))
    await finals.publish(names.final("c"), FinalRecord("c", "c-2", 1, cancelled="session closed"))
    failed, cancelled = await finals.read(names.final("f")), await finals.read(names.final("c"))
    assert failed is not None
    assert failed.failure == failure
    assert cancelled is not None
    assert cancelled.cancelled == "session closed"
    assert await finals.read(names.final("nobody")) is None


async def test_a_final_republished_with_the_same_attempt_stays_one(bus: Bus, names: SessionSubjects) -> None:
    heard = await bus.client.subscribe(names.live_finals)
    for _ in range(3):
        await Finals(bus).publish(names.final("v"), FinalRecord("v", "c-1", 1, text="once"))
    await heard.next_msg(timeout=5)
    await bus.client.flush()
    assert heard.pending_msgs == 0


async def test_publishing_and_reading_go_on_after_the_server_was_killed(
    tmp_path: Path, names: SessionSubjects
) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connected(server.url, "test", 5) as bus:
            finals = Finals(bus)
            async with Feeds(bus).session("default", names.session_id) as feed:
                await finals.publish(names.final("before"), FinalRecord("before", text="kept"))
                server.kill()
                server.start()
                await finals.publish(names.final("after"), FinalRecord("after", text="published"))
                text, _ = await read_all(feed.cursor("after"))
            record = await finals.read(names.final("before"))
    finally:
        server.stop()
    assert text == "published"
    assert record is not None
    assert record.text == "kept"


@pytest.mark.parametrize(
    "trouble",
    [nats.errors.ConnectionClosedError(), ConnectionResetError(), RuntimeError("the handler is closed")],
)
async def test_a_message_that_can_not_be_sent_is_not_the_last(
    bus: Bus, names: SessionSubjects, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    tried = asyncio.Event()

    async def refuse(subject: str, payload: bytes, headers: dict[str, str]) -> None:
        tried.set()
        raise trouble

    async with Feeds(bus).session("default", names.session_id) as feed, DeltaWriter(bus, "e-1") as writer:
        with monkeypatch.context() as broken:
            broken.setattr(bus.client, "publish", refuse)
            write(writer, names, "lost")
            await asyncio.wait_for(tried.wait(), 5)
        write(writer, names, "heard")
        assert await feed.cursor("v").next(5) == Chunk(0, "heard")


def test_messages_unsent_do_not_keep_a_connection_from_closing(tmp_path: Path) -> None:
    """On the services' own event loop, which refuses writes that asyncio's lets pass."""
    server = NatsServer(tmp_path)
    server.start()

    async def lose() -> None:
        async with connected(server.url, "test", 5) as bus:
            server.kill()
            await eventually(lambda: not bus.client.is_connected)
            await bus.client.publish("a", b"b")

    uvloop.run(lose())


@pytest.mark.parametrize("version", ["2.9.10", "2.11.99", "", "0.0.0-unknown"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(Fault, match=r"needs 2\.12 or newer"):
        bus_module.check_version(version, "nats://here")


async def test_no_server_is_an_error_that_says_where(nats_url: str) -> None:
    with pytest.raises(Fault, match=r"no NATS server answers at nats://127\.0\.0\.1:1"):
        async with connected("nats://127.0.0.1:1", "test", 0.3):
            pass


def test_a_record_ends_in_exactly_one_way() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        FinalRecord("v", text="x", failure=common_pb2.Failure())
