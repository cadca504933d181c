"""Commands are carried out in order, behind their commits, whatever the store and the effects do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from tests.support.eventually import eventually

from parrot_manager import outbox as outbox_module
from parrot_manager.core.commands import Cancel, Changes, Effect, Persist, PublishValue
from parrot_manager.core.model import Call, CallState, Ref, Value
from parrot_manager.outbox import Outbox, merge
from parrot_manager.store.base import refused
from parrot_manager.store.memory import MemoryStore
from parrot_manager.tasks import Tasks
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

S = "s00-0000000000000001"
CALL = Call(S, "c-1", 1, 1, "f", "m", (), (), b"", 0)


class Gated(MemoryStore):
    """Commits when it may, after as many outages as it is told to have."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.outages = 0
        self.taken = False
        self._log = log

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        await self.gate.wait()
        if self.taken:
            raise refused(session_id)
        if self.outages:
            self.outages -= 1
            raise Fault(errors.UNAVAILABLE, "away")
        self._log.append("commit " + ",".join(f"{c.id}={c.state.name}" for c in changes.calls))


@dataclass
class Bench:
    """An outbox whose doings are written down."""

    log: list[str] = field(default_factory=list)
    effect_gate: asyncio.Event = field(default_factory=asyncio.Event)
    store: Gated = field(init=False)
    outbox: Outbox = field(init=False)
    lease: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.store = Gated(self.log)
        self.effect_gate.set()
        self.lease.set()

    async def allowed(self) -> None:
        await self.lease.wait()

    async def perform(self, effect: Effect) -> None:
        await self.effect_gate.wait()
        assert isinstance(effect, PublishValue)
        self.log.append(f"publish {effect.value.variable_id}")


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """An outbox with its tasks."""
    made = Bench()
    async with asyncio.TaskGroup() as group:
        made.outbox = Outbox(
            S,
            made.store,
            Tasks(group),
            committed=lambda changes: None,
            cancel=lambda command: made.log.append(f"cancel {command.ref.call_id}"),
            perform=made.perform,
            epoch=1,
            allowed=made.allowed,
            lost=lambda session_id, epoch: made.log.append(f"lost {session_id} of {epoch}"),
        )
        yield made


def persist(call: Call) -> Persist:
    return Persist(S, Changes(calls=(call,)))


def publish(name: str) -> PublishValue:
    return PublishValue(S, "default", Value(name, b""))


async def test_effects_follow_their_commit_in_order() -> None:
    async with bench() as made:
        made.outbox.put([persist(CALL), publish("a"), publish("b")])
        await asyncio.sleep(0)
        assert made.log == []
        made.store.gate.set()
        await made.outbox.quiet()
        assert made.log == ["commit c-1=ACCEPTED", "publish a", "publish b"]
        assert made.outbox.idle


async def test_what_piles_up_is_one_commit_with_the_newest_snapshots() -> None:
    async with bench() as made:
        made.outbox.put([persist(CALL)])
        await asyncio.sleep(0)
        made.outbox.put([persist(replace(CALL, state=CallState.READY)), publish("a")])
        made.outbox.put([persist(replace(CALL, state=CallState.RUNNING)), publish("b")])
        made.store.gate.set()
        await made.outbox.quiet()
        assert made.log == ["commit c-1=ACCEPTED", "commit c-1=RUNNING", "publish a", "publish b"]


async def test_an_outage_of_the_store_delays_and_loses_nothing() -> None:
    async with bench() as made:
        made.store.outages = 3
        made.store.gate.set()
        made.outbox.put([persist(CALL), publish("a")])
        await made.outbox.settled(5)
        await made.outbox.quiet()
        assert made.log == ["commit c-1=ACCEPTED", "publish a"]


async def test_an_effect_that_hangs_holds_up_neither_commits_nor_cancels() -> None:
    async with bench() as made:
        made.effect_gate.clear()
        made.store.gate.set()
        made.outbox.put([persist(CALL), publish("a")])
        await made.outbox.settled(5)
        made.outbox.put([persist(CALL), Cancel(Ref(S, "c-1", 1), "e", "why"), publish("b")])
        await made.outbox.settled(5)
        assert made.log == ["commit c-1=ACCEPTED", "commit c-1=ACCEPTED", "cancel c-1"]
        made.effect_gate.set()
        await made.outbox.quiet()
        assert made.log[3:] == ["publish a", "publish b"]


async def test_waiting_for_a_commit_ends() -> None:
    async with bench() as made:
        made.outbox.put([persist(CALL)])
        with pytest.raises(Fault) as late:
            await made.outbox.settled(0.01)
        assert late.value.kind is errors.UNAVAILABLE
        made.store.gate.set()


async def test_a_session_that_is_another_managers_is_left_alone() -> None:
    async with bench() as made:
        made.store.taken = True
        made.outbox.put([persist(CALL), publish("a")])
        settled = asyncio.create_task(made.outbox.settled(5))
        made.store.gate.set()
        with pytest.raises(Fault) as refused_:
            await settled
        assert refused_.value.kind is errors.WRONG_MANAGER
        made.outbox.put([persist(CALL), publish("b"), Cancel(Ref(S, "c-1", 1), "e", "why")])
        await made.outbox.quiet()
        assert made.log == [f"lost {S} of 1"]


async def test_a_refusal_that_comes_after_the_end_is_told_to_nobody() -> None:
    async with bench() as made:
        made.store.taken = True
        made.outbox.put([persist(CALL)])
        await asyncio.sleep(0)
        made.outbox.close()
        made.store.gate.set()
        await made.outbox.quiet()
        assert made.log == []


async def test_what_was_stored_is_told_only_under_a_lease() -> None:
    async with bench() as made:
        made.lease.clear()
        made.store.gate.set()
        made.outbox.put([persist(CALL), publish("a")])
        await made.outbox.settled(5)
        made.outbox.put([persist(CALL), publish("b")])
        await made.outbox.settled(5)
        assert made.log == ["commit c-1=ACCEPTED"] * 2
        made.lease.set()
        await made.outbox.quiet()
        assert made.log[2:] == ["publish a", "publish b"]


async def test_a_lease_that_ends_for_good_ends_what_waits_for_it() -> None:
    async with bench() as made:
        made.lease.clear()
        made.store.gate.set()
        made.outbox.put([persist(CALL), publish("a")])
        await made.outbox.settled(5)
        made.outbox.close()
        made.lease.set()
        await made.outbox.quiet()
        assert made.log == ["commit c-1=ACCEPTED"]


def test_merged_changes_keep_the_newest_of_each_thing() -> None:
    other = replace(CALL, id="c-2", number=2)
    done = replace(CALL, state=CallState.DONE)
    merged = merge([Changes(calls=(CALL, other)), Changes(calls=(done,), values=(Value("a", b""),))])
    assert merged == Changes(calls=(done, other), values=(Value("a", b""),))


async def test_what_can_wait_joins_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_S", 60.0)
    async with bench() as made:
        made.store.gate.set()
        made.outbox.put([replace(persist(CALL), can_wait=True)])
        await asyncio.sleep(0.01)
        assert made.log == []
        assert not made.outbox.idle
        made.outbox.put([persist(replace(CALL, id="c-2")), publish("a")])
        await made.outbox.quiet()
        assert made.log == ["commit c-1=ACCEPTED,c-2=ACCEPTED", "publish a"]


async def test_what_can_wait_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_S", 0.02)
    async with bench() as made:
        made.store.gate.set()
        made.outbox.put([replace(persist(CALL), can_wait=True)])
        made.outbox.put([replace(persist(replace(CALL, id="c-2")), can_wait=True)])
        await eventually(lambda: made.outbox.idle)
        assert made.log == ["commit c-1=ACCEPTED,c-2=ACCEPTED"]


async def test_what_can_wait_waits_behind_a_commit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_S", 60.0)
    async with bench() as made:
        made.outbox.put([persist(CALL)])
        await asyncio.sleep(0)
        made.outbox.put([replace(persist(replace(CALL, id="c-2")), can_wait=True)])
        made.store.gate.set()
        await eventually(lambda: made.log)
        await asyncio.sleep(0.01)
        assert made.log == ["commit c-1=ACCEPTED"]
        await made.outbox.settled(5)
        assert made.log == ["commit c-1=ACCEPTED", "commit c-2=ACCEPTED"]


async def test_whoever_asks_whether_all_is_stored_does_not_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_S", 60.0)
    async with bench() as made:
        made.outbox.put([replace(persist(CALL), can_wait=True)])
        settled = asyncio.create_task(made.outbox.settled(5))
        await asyncio.sleep(0)
        # Nor is one that comes meanwhile left behind it.
        made.outbox.put([replace(persist(replace(CALL, id="c-2")), can_wait=True)])
        made.store.gate.set()
        await settled
        assert made.log[0].startswith("commit c-1=ACCEPTED")
        await made.outbox.quiet()
        assert "c-2=ACCEPTED" in made.log[-1]


async def test_a_session_that_is_gone_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_S", 0.01)
    async with bench() as made:
        made.store.gate.set()
        made.outbox.put([replace(persist(CALL), can_wait=True)])
        made.outbox.close()
        await asyncio.sleep(0.05)
        assert made.log == []
        assert made.outbox.idle
