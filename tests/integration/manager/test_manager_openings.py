"""Sessions that are opened with their first batch: both, once, or neither."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from tests.support.fake_engine import attached
from tests.support.manager import TENANT, Client, ManagerUnderTest, call, eventually, native, serving

from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, SessionState
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors
from parrot_runtime.errors import Fault, Kind
from parrot_runtime.ids import SHARDS, session_id_of
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

CLOSED = common_pb2.SESSION_STATE_CLOSED


@pytest.fixture
def key() -> str:
    """A key of the test's own: all share a bus, which keeps what was written of a session."""
    return secrets.token_hex(8)


@pytest.fixture
def session(key: str) -> str:
    """The id of the session it opens."""
    return session_id_of(TENANT, key)


@pytest.fixture
async def manager(memory: Store, bus: Bus) -> AsyncIterator[ManagerUnderTest]:
    """A manager with one engine of model m."""
    async with serving(memory, bus) as started, attached(started.address, bus):
        await started.client.engine_ready()
        yield started


async def refusal(client: Client, session_key: str, *calls: pb.NewCall, **asked: str) -> Fault:
    """Why a session with a batch is refused."""
    with pytest.raises(Fault) as refused:
        await client.open_with(session_key, calls, **asked)  # type: ignore[arg-type]
    return refused.value


class Counting(MemoryStore):
    """Keeps which writes it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    async def insert_session(self, session: Session, epoch: int) -> None:
        self.writes.append("session")
        await super().insert_session(session, epoch)

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        self.writes.append("calls")
        await super().insert_calls(accepted, epoch)

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        self.writes.append("both")
        return await super().insert_session_with_calls(session, accepted, epoch)

    async def read_session(self, session_id: str) -> Session | None:
        self.writes.append("look")
        return await super().read_session(session_id)


async def test_it_takes_one_write_and_runs_to_its_end(bus: Bus, key: str, session: str) -> None:
    store = Counting()
    async with serving(store, bus) as manager, attached(manager.address, bus):
        await manager.client.engine_ready()
        opened = await manager.client.open_with(key, [call("one", ["a"], ["b"])], {"a": "given"})
        assert store.writes == ["both"]
        assert (opened.session.id, list(opened.call_ids)) == (session, ["c-1"])
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert (await manager.client.session(session)).session.state == CLOSED


async def test_sent_again_it_is_the_same_also_at_its_next_manager(
    memory: Store, bus: Bus, key: str, session: str
) -> None:
    calls = [call("one", [], ["a"]), call("two", [], ["b"])]
    async with serving(memory, bus) as manager:
        first = await manager.client.open_with(key, calls)
        assert await manager.client.open_with(key, calls) == first
        assert list(first.call_ids) == ["c-1", "c-2"]
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        assert await manager.client.open_with(key, calls) == first
        for name in ("a", "b"):
            assert (await manager.client.ended(session, name)).value == f"text of {name}"
        assert sorted(program.name for program in engine.programs) == ["one", "two"]


async def test_its_keys_stand_for_one_session_and_one_batch(
    manager: ManagerUnderTest, key: str, session: str
) -> None:
    client = manager.client
    await client.open_with(key, [call("one", [], ["a"])])
    other_session = await refusal(client, key, call("one", [], ["a"]), label="other")
    other_batch = await refusal(client, key, call("two", [], ["a"]))
    for fault in (other_session, other_batch):
        assert (fault.kind, fault.field) == (errors.IDEMPOTENCY_CONFLICT, "idempotency_key")
    assert [one.name for one in (await client.session(session)).calls] == ["one"]


async def test_an_open_session_is_joined(manager: ManagerUnderTest, key: str) -> None:
    client = manager.client
    # Held open by a call for which no worker comes.
    await client.open_with(key, [native("waits", [], ["x"])])
    joined = await client.open_with(key, [call("one", [], ["a"])], key="another")
    assert list(joined.call_ids) == ["c-2"]


async def test_one_that_has_ended_takes_nothing_new_in_memory_or_not(
    bus: Bus, key: str, session: str
) -> None:
    store = MemoryStore()
    async with serving(store, bus, retain_s=0.05) as manager, attached(manager.address, bus):
        client = manager.client
        await client.engine_ready()
        await client.open_with(key, [call("one", [], ["a"])])
        await client.ended(session, "a")
        assert (await refusal(client, key, call("two", [], ["b"]), key="new")).kind is errors.SESSION_ENDED

        async def forgotten() -> bool:
            return session not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        assert (await refusal(client, key, call("two", [], ["b"]), key="new")).kind is errors.SESSION_ENDED
        # Neither what is wrong with it nor another's session comes first.
        unknown = call("two", [], ["b"], model="gpt")
        assert (await refusal(client, key, unknown, key="new")).kind is errors.SESSION_ENDED
        assert (await refusal(client, key, unknown, label="x")).kind is errors.IDEMPOTENCY_CONFLICT


@pytest.mark.parametrize(
    ("kind", "field", "asked"),
    [
        (errors.INVALID_REQUEST, "session_id", {"session_id": session_id_of(TENANT, "other")}),
        (errors.INVALID_REQUEST, "session_id", {"session_id": "nonsense"}),
        (errors.INVALID_TEXT, "opening.label", {"label": "a\nb"}),
        (errors.UNKNOWN_MODEL, "calls[0].model", {}),
    ],
)
async def test_what_is_refused_leaves_no_session(
    manager: ManagerUnderTest, kind: Kind, field: str, asked: dict[str, str]
) -> None:
    model = "gpt" if kind is errors.UNKNOWN_MODEL else ""
    fault = await refusal(manager.client, "new", call("one", [], ["a"], model=model), **asked)
    assert (fault.kind, fault.field) == (kind, field)
    assert await manager.shell.store.find_live(range(SHARDS), 0) == []
    assert manager.shell.machine.state.sessions == {}


async def test_without_a_key_no_session_is_opened_with_a_batch(manager: ManagerUnderTest) -> None:
    fault = await refusal(manager.client, "", call("one", [], ["a"]))
    assert (fault.kind, fault.field) == (errors.INVALID_REQUEST, "opening.idempotency_key")


class Forgetful(MemoryStore):
    """Stores a session with its batch, and says once that it could not."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = True

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        new = await super().insert_session_with_calls(session, accepted, epoch)
        if self.failing:
            self.failing = False
            raise Fault(errors.UNAVAILABLE, "away", retry_after_ms=1000)
        return new


async def test_where_storing_seemed_to_fail_the_batch_is_taken_back_and_may_be_sent_again(
    bus: Bus, key: str, session: str
) -> None:
    store = Forgetful()
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        fault = await refusal(manager.client, key, call("first", [], ["a"]))
        assert fault.kind is errors.UNAVAILABLE
        opened = await manager.client.open_with(key, [call("again", [], ["a"])])
        assert list(opened.call_ids) == ["c-1"]
        await manager.client.ended(session, "a")
        assert [program.name for program in engine.programs] == ["again"]


async def test_where_storing_seemed_to_fail_and_nobody_asks_again_the_session_is_there_and_empty(
    bus: Bus, key: str, session: str
) -> None:
    store = Forgetful()
    async with serving(store, bus) as manager:
        await refusal(manager.client, key, call("first", [], ["a"]))

        async def there() -> bool:
            return session in manager.shell.machine.state.sessions

        await eventually(there)
        got = await manager.client.session(session)
        assert (got.session.state, list(got.calls)) == (common_pb2.SESSION_STATE_OPEN, [])
        record = await store.load_session(TENANT, session)
        assert record is not None
        assert (record.session.state, record.calls) == (SessionState.OPEN, ())


class Failing(MemoryStore):
    """Opens sessions with batches until it is told to be away."""

    away = False

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        if self.away:
            raise Fault(errors.UNAVAILABLE, "away", retry_after_ms=1000)
        return await super().insert_session_with_calls(session, accepted, epoch)


async def test_where_storing_fails_what_a_session_that_has_ended_holds_stays(
    bus: Bus, key: str, session: str
) -> None:
    store = Failing()
    async with serving(store, bus, retain_s=0.05) as manager, attached(manager.address, bus):
        await manager.client.engine_ready()
        await manager.client.open_with(key, [call("one", [], ["a"])])
        await manager.client.ended(session, "a")

        async def forgotten() -> bool:
            return session not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        store.away = True
        assert (await refusal(manager.client, key, call("one", [], ["a"]))).kind is errors.UNAVAILABLE
        # Behind what is done about it.
        store.away = False
        again = await refusal(manager.client, key, call("one", [], ["a"]), key="new")
        assert again.kind is errors.SESSION_ENDED
        got = await manager.client.session(session)
        assert (got.session.state, [one.id for one in got.calls]) == (CLOSED, ["c-1"])
        assert (await manager.client.get(session, "a")).value == "text of a"


class Unheard(MemoryStore):
    """Its answer to the first write was lost, and the write is done again."""

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        await super().insert_session_with_calls(session, accepted, epoch)
        return await super().insert_session_with_calls(session, accepted, epoch)


async def test_a_write_that_was_done_unheard_of_counts(bus: Bus, key: str, session: str) -> None:
    async with serving(Unheard(), bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        opened = await manager.client.open_with(key, [call("one", [], ["a"])])
        assert (opened.session.id, list(opened.call_ids)) == (session, ["c-1"])
        assert (await manager.client.ended(session, "a")).value == "text of a"
        assert [program.name for program in engine.programs] == ["one"]
