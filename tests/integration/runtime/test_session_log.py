"""A session's log on a real bus: the same entries for whoever reads it, whenever, and whatever was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.eventually import eventually
from tests.support.nats import NatsServer, temporary_nats

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.errors import Fault
from parrot_runtime.ids import new_session_id
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.session_entries import LaggingError
from parrot_runtime.values.session_fold import Added
from parrot_runtime.values.session_log import SessionLog, SessionLogs, Told
from parrot_runtime.values.states import StateSubject, SupersededError
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

pytestmark = pytest.mark.anyio
TENANT = "default"


class Session:
    """A session's two writers: an engine and a manager."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.names = SessionSubjects(TENANT, new_session_id())
        self._subject = StateSubject(bus)
        self._after = 0
        self._offset = 0

    async def write(self, text: str) -> None:
        async with DeltaWriter(self.bus, "e-1") as writer:
            writer.append(
                self.names.delta,
                variable_id="y",
                call_id="c-1",
                attempt=1,
                offset_bytes=self._offset,
                text=text,
            )
            self._offset += len(text.encode())
        await self.bus.client.flush()

    async def tell(self, state: str) -> None:
        await self.change(values_pb2.StateChange(kind="call", id="c-1", state=state))

    async def change(self, *changes: values_pb2.StateChange) -> None:
        message = values_pb2.SessionStates(changes=changes)
        self._after = await self._subject.append(self.names, message, self._after)

    async def play(self, count: int) -> None:
        """Text and states in turns."""
        for number in range(count):
            await self.write(f"w{number:03} ")
            await self.tell(f"s{number}")


def words(sequence: int, news: Sequence[Told]) -> list[bytes]:
    """Each news in a word."""
    return [f"{sequence} {one.text if isinstance(one, Added) else one.state}".encode() for one in news]


def logs_of(bus: Bus) -> SessionLogs:
    return SessionLogs(bus, lambda session_id: words, stored)


async def stored(names: SessionSubjects, variable_id: str) -> bytes:
    """What a manager has."""
    return f"stored {variable_id}".encode()


async def entries(log: SessionLog) -> list[bytes]:
    found = []
    for number in range(log.entries.first, log.entries.end):
        entry = log.entries.get(number)
        assert entry is not None
        found += await log.parts(entry)
    return found


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made


@pytest.fixture
async def session(bus: Bus) -> Session:
    return Session(bus)


async def test_text_and_states_come_in_one_order_live_and_late(bus: Bus, session: Session) -> None:
    logs = logs_of(bus)
    async with logs.session(TENANT, session.names.session_id) as live:
        await session.play(20)
        await eventually(lambda: live.entries.end == 40)
        # Another process's.
        async with logs_of(bus).session(TENANT, session.names.session_id) as late:
            assert await entries(late) == await entries(live)
            assert [line.split()[1] for line in (await entries(late))[:4]] == [b"w000", b"s0", b"w001", b"s1"]
            assert [entry.sequence for entry in late.entries._kept] == [
                entry.sequence for entry in live.entries._kept
            ]


async def test_messages_that_come_while_it_is_read_are_neither_lost_nor_repeated(
    bus: Bus, session: Session
) -> None:
    await session.play(50)
    playing = asyncio.create_task(session.play(100))
    read: list[list[bytes]] = []
    for _ in range(10):
        async with logs_of(bus).session(TENANT, session.names.session_id) as log:
            await asyncio.sleep(0)
            read.append(await entries(log))
    await playing
    async with logs_of(bus).session(TENANT, session.names.session_id) as log:
        whole = await entries(log)
    assert all(part == whole[: len(part)] for part in read)
    assert len(read[-1]) > 100


async def test_what_the_bus_told_while_nobody_heard_it_is_read_again() -> None:
    with temporary_nats() as server:
        async with connected(server.url, "test", 5) as bus, _other(server) as writer:
            session = Session(writer)
            async with logs_of(bus).session(TENANT, session.names.session_id) as log:
                await session.play(3)
                await eventually(lambda: log.entries.end == 6)
                subscription = log._subscription
                assert subscription is not None
                await subscription.unsubscribe()
                await session.play(3)
                log._subscription = await bus.client.subscribe(session.names.live_log, cb=log._on_message)
                await bus.client.flush()
                await session.tell("last")
                await eventually(lambda: log.entries.end == 13)
                assert (await entries(log))[-1].endswith(b" last")


async def test_a_silent_log_is_read_again_once_its_bus_was_lost() -> None:
    with temporary_nats() as server:
        async with connected(server.url, "test", 5) as bus:
            session = Session(bus)
            async with logs_of(bus).session(TENANT, session.names.session_id) as log:
                await session.tell("running")
                await eventually(lambda: log.entries.end == 1)
                server.kill()
                server.start()
                await eventually(lambda: bus.client.stats["reconnects"] == 1)
                async with _other(server) as writer:
                    other = Session(writer)
                    other.names, other._after = session.names, log.last
                    await other.tell("done")
                await log.wait(1, 10)
                assert (await entries(log))[-1].endswith(b" done")


@pytest.mark.parametrize("on_bus", [True, False])
async def test_what_was_not_streamed_of_a_value_comes_before_its_end(
    bus: Bus, session: Session, *, on_bus: bool
) -> None:
    whole = "abc and the rest" if on_bus else "stored y"
    if on_bus:
        await Finals(bus).publish(session.names.final("y"), FinalRecord("y", "c-1", 1, text=whole))
    await session.write(whole[:3])
    ready = values_pb2.StateChange(
        kind="variable", id="y", state="ready", size_bytes=len(whole), producer_call_id="c-1"
    )
    set_by_client = values_pb2.StateChange(kind="variable", id="x", state="ready", size_bytes=5)
    await session.change(ready, set_by_client)
    async with logs_of(bus).session(TENANT, session.names.session_id) as log:
        told = [line.split(b" ", 1)[1].decode() for line in await entries(log)]
        assert told == [whole[:3], whole[3:], "ready", "ready"]


async def test_only_the_newest_entries_are_kept_and_who_is_behind_is_told(bus: Bus, session: Session) -> None:
    log = logs_of(bus).alone(TENANT, session.names.session_id, kept_bytes=2_000)
    await log.open()
    try:
        await session.play(40)
        await eventually(lambda: log.entries.end == 80)
        assert log.entries.first > 60
        with pytest.raises(LaggingError):
            log.entries.get(0)
        assert log.fold.states["call", "c-1"].state == "s39"
    finally:
        await log.close()


async def test_a_log_is_shared_and_leaves_nothing_behind(bus: Bus, session: Session) -> None:
    logs = logs_of(bus)
    before = len(bus.client._subs)
    async with logs.session(TENANT, session.names.session_id) as one:
        async with logs.session(TENANT, session.names.session_id) as other:
            assert one is other
        await session.tell("running")
        await eventually(lambda: one.entries.end == 1)
    assert len(bus.client._subs) == before
    assert not logs._open


async def test_a_bus_that_is_away_is_said_to_be(bus: Bus, session: Session) -> None:
    with temporary_nats() as server:
        async with connected(server.url, "test", 5) as lost:
            server.kill()
            await eventually(lambda: not lost.client.is_connected)
            with pytest.raises(Fault, match="unavailable"):
                async with logs_of(lost).session(TENANT, session.names.session_id):
                    pass


async def test_only_one_writer_at_a_time_tells_of_a_session(bus: Bus, session: Session) -> None:
    subject = StateSubject(bus)
    message = values_pb2.SessionStates(epoch=1)
    assert await subject.last(session.names) is None
    first = await subject.append(session.names, message, 0)
    with pytest.raises(SupersededError):
        await subject.append(session.names, message, 0)
    second = await subject.append(session.names, message, first)
    last = await subject.last(session.names)
    assert last is not None
    assert (last.sequence, last.message) == (second, message)


@asynccontextmanager
async def _other(server: NatsServer) -> AsyncIterator[Any]:
    async with connected(server.url, "other", 5) as made:
        yield made
