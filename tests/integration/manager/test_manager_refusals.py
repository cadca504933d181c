"""What is wrong is refused with what, where and what to do, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.fake_engine import attached
from tests.support.manager import Client, ManagerUnderTest, call, eventually, serving

from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, SessionState
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits, rpc
from parrot_runtime.errors import Fault, Kind
from parrot_runtime.ids import SHARDS
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


@pytest.fixture
async def manager(memory: Store, bus: Bus) -> AsyncIterator[ManagerUnderTest]:
    """A manager with one engine of model m."""
    async with serving(memory, bus) as started, attached(started.address, bus):
        await started.client.engine_ready()
        yield started


def sampled(**sampling: object) -> manager_pb2.NewCall:
    """A call with a sampling."""
    made = call("one", [], ["a"])
    made.segments[-1].output.sampling.CopyFrom(common_pb2.Sampling(**sampling))  # type: ignore[arg-type]
    return made


def transformed(*names: str) -> manager_pb2.NewCall:
    """A call with transforms."""
    made = call("one", [], ["a"])
    made.segments[-1].output.transforms.extend(names)
    return made


CASES: list[tuple[Kind, str, list[manager_pb2.NewCall]]] = [
    (errors.DUPLICATE_PRODUCER, "calls[1].a", [call("one", [], ["a"]), call("two", [], ["a"])]),
    (errors.DUPLICATE_PRODUCER, "calls[0].given", [call("one", [], ["given"])]),
    (errors.CYCLIC_GRAPH, "calls[0]", [call("one", ["b"], ["a"]), call("two", ["a"], ["b"])]),
    (errors.UNPRODUCED_VARIABLE, "calls[0].x", [call("one", ["x"], ["a"])]),
    (errors.UNKNOWN_MODEL, "calls[0].model", [call("one", [], ["a"], model="gpt")]),
    (errors.INVALID_TEMPLATE, "calls[0].prompt", [call("one", ["given"], [])]),
    (errors.INVALID_REQUEST, "calls[0].a.b", [call("one", [], ["a.b"])]),
    (errors.INVALID_TEXT, "calls[0].name", [call("on\ne", [], ["a"])]),
    (errors.INVALID_SAMPLING, "calls[0].a.temperature", [sampled(temperature=-1)]),
    (errors.INVALID_SAMPLING, "calls[0].a.temperature", [sampled(temperature=float("nan"))]),
    (errors.INVALID_SAMPLING, "calls[0].a.top_p", [sampled(top_p=1.5)]),
    (errors.INVALID_SAMPLING, "calls[0].a.min_tokens", [sampled(min_tokens=5, max_tokens=4)]),
    (errors.INVALID_SAMPLING, "calls[0].a.min_p", [sampled(min_p=2)]),
    (errors.INVALID_SAMPLING, "calls[0].a.logprobs", [sampled(logprobs=21)]),
    (errors.INVALID_SAMPLING, "calls[0].a.logit_bias", [sampled(logit_bias={1: float("inf")})]),
    (errors.INVALID_SAMPLING, "calls[0].a.guide", [sampled(guide=common_pb2.Guide())]),
    (
        errors.TOO_LARGE,
        "calls[0].a.guide.regex",
        [sampled(guide=common_pb2.Guide(regex="a" * (limits.GUIDE_BYTES + 1)))],
    ),
    (errors.INVALID_REQUEST, "calls[0].a.transforms[1]", [transformed("strip", "regex:(")]),
    (errors.TOO_LARGE, "calls[0].a.transforms", [transformed(*["strip"] * 17)]),
    (errors.TOO_LARGE, "calls", [call("one", [], ["a"])] * (limits.BATCH_CALLS + 1)),
    (
        errors.TOO_LARGE,
        "calls[0].placeholders",
        [call("one", ["given"] * limits.PLACEHOLDERS, ["a"])],
    ),
]


@pytest.mark.parametrize(("kind", "field", "batch"), CASES, ids=[f"{c[0].type}-{c[1]}" for c in CASES])
async def test_a_wrong_batch_is_refused_whole(
    manager: ManagerUnderTest, kind: Kind, field: str, batch: list[manager_pb2.NewCall]
) -> None:
    session = await manager.client.open()
    with pytest.raises(Fault) as refused:
        await manager.client.submit(session, [*batch, call("fine", [], ["fine"])], {"given": "x"})
    assert refused.value.kind is kind
    assert refused.value.field == field
    graph = await manager.client.session(session)
    assert (len(graph.calls), len(graph.variables)) == (0, 0)


async def test_a_value_beyond_the_limit_is_refused(manager: ManagerUnderTest) -> None:
    session = await manager.client.open()
    with pytest.raises(Fault) as refused:
        await manager.client.set(session, "a", "x" * (limits.VALUE_BYTES + 1))
    assert refused.value.kind is errors.TOO_LARGE
    assert "8,388,609 bytes" in refused.value.message


async def test_a_variable_gets_its_value_once(manager: ManagerUnderTest) -> None:
    session = await manager.client.open()
    await manager.client.submit(session, [call("one", [], ["made"])], {"a": "first"})
    for name, kind in (("a", errors.VARIABLE_ALREADY_SET), ("made", errors.DUPLICATE_PRODUCER)):
        with pytest.raises(Fault) as refused:
            await manager.client.set(session, name, "second")
        assert refused.value.kind is kind
        assert refused.value.variable_id == name
    assert (await manager.client.get(session, "a")).value == "first"


async def test_nothing_new_joins_a_session_that_has_ended(manager: ManagerUnderTest) -> None:
    session = await manager.client.open()
    await manager.client.close(session)
    with pytest.raises(Fault) as refused:
        await manager.client.submit(session, [call("one", [], ["a"])])
    assert refused.value.kind is errors.SESSION_ENDED
    with pytest.raises(Fault) as refused:
        await manager.client.set(session, "a", "x")
    assert refused.value.kind is errors.SESSION_ENDED


async def test_another_tenants_session_is_not_found(manager: ManagerUnderTest) -> None:
    session = await manager.client.open()
    await manager.client.set(session, "a", "secret")
    async with rpc.channel(manager.address) as channel:
        stranger = Client(channel, tenant="stranger")
        for ask in (
            stranger.session(session),
            stranger.get(session, "a"),
            stranger.set(session, "b", "x"),
            stranger.submit(session, [call("one", [], ["c"])]),
            stranger.close(session),
            stranger.session("no such session"),
        ):
            with pytest.raises(Fault) as refused:
                await ask
            assert refused.value.kind is errors.NOT_FOUND
    with pytest.raises(Fault) as refused:
        await manager.client.get(session, "nothing")
    assert refused.value.kind is errors.NOT_FOUND


async def test_a_time_out_out_of_range_and_a_label_with_a_control_character_are_refused(
    manager: ManagerUnderTest,
) -> None:
    for timeout_ms, label, field in ((-5, "", "timeout_ms"), (10**9, "", "timeout_ms"), (0, "a\0b", "label")):
        with pytest.raises(Fault) as refused:
            await manager.client.open(timeout_ms, label)
        assert refused.value.field == field


class Forgetful(MemoryStore):
    """Stores a batch, and says once that it could not."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = True
        self.removed = 0

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        await super().insert_calls(accepted, epoch)
        if self.failing:
            self.failing = False
            raise Fault(errors.UNAVAILABLE, "away", retry_after_ms=1000)

    async def remove_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        self.removed += 1
        if self.removed == 1:
            raise Fault(errors.UNAVAILABLE, "still away")
        await super().remove_calls(accepted, epoch)


async def test_a_batch_whose_storing_failed_is_taken_back_and_may_be_sent_again(bus: Bus) -> None:
    store = Forgetful()
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        session = await manager.client.open()
        with pytest.raises(Fault) as refused:
            await manager.client.submit(session, [call("first", ["a"], ["b"])], {"a": "old"})
        assert refused.value.kind is errors.UNAVAILABLE
        assert refused.value.retry_after_ms == 1000
        assert await manager.client.submit(session, [call("again", ["a"], ["b"])], {"a": "new"}) == ["c-1"]
        await manager.client.ended(session, "b")
        assert [program.name for program in engine.programs] == ["again"]
        assert await store.read_value(session, "a") == b"new"
        assert store.removed == 2


async def test_a_session_whose_storing_seemed_to_fail_is_there_for_the_second_try(bus: Bus) -> None:
    class Doubtful(MemoryStore):
        """Stores a session, and says once that it could not."""

        failing = True

        async def insert_session(self, session: Session, epoch: int) -> None:
            await super().insert_session(session, epoch)
            if self.failing:
                self.failing = False
                raise Fault(errors.UNAVAILABLE, "away", retry_after_ms=1000)

    async with serving(Doubtful(), bus) as manager, attached(manager.address, bus):
        with pytest.raises(Fault) as refused:
            await manager.client.open(key="k")
        assert refused.value.kind is errors.UNAVAILABLE
        session = await manager.client.open(key="k")
        await manager.client.submit(session, [call("one", [], ["a"])])
        assert (await manager.client.ended(session, "a")).value == "text of a"
    store = Doubtful()
    async with serving(store, bus) as manager:
        # Nobody tries again: it is stored all the same, and has its deadline.
        with pytest.raises(Fault):
            await manager.client.open(timeout_ms=100)

        async def expired() -> bool:
            ((session_id,),) = await store.find_live(range(SHARDS), 0)
            record = await store.load_session("default", session_id)
            return record is not None and record.session.state is SessionState.EXPIRED

        await eventually(expired)


async def test_a_client_that_goes_away_while_it_submits_changes_nothing(bus: Bus) -> None:
    class Slow(MemoryStore):
        """Is told when it may store."""

        async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
            reached.set()
            await go_on.wait()
            await super().insert_calls(accepted, epoch)

    reached, go_on = asyncio.Event(), asyncio.Event()
    async with serving(Slow(), bus) as manager, attached(manager.address, bus):
        session = await manager.client.open()
        asking = asyncio.create_task(manager.client.submit(session, [call("one", [], ["a"])]))
        await asyncio.wait_for(reached.wait(), 5)
        asking.cancel()
        go_on.set()

        async def there() -> bool:
            return bool((await manager.client.session(session)).calls)

        await eventually(there)
        assert (await manager.client.ended(session, "a")).value == "text of a"
