"""Random writes, some of them repeated: both stores count alike, and as what they hold says."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from tests.support.quotas import SESSION, A, batch, call, claim, done

from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Call, CallState, Edge, SessionState, Variable, VariableState
from parrot_manager.core.tenants import Taken, TenantLimits
from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import opened
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

LIMITS = TenantLimits(sessions=3, calls=12, tokens=900, stored_bytes=400)
STEPS = 60
Write = Callable[[Store], Awaitable[object]]
Step = tuple[Write, Callable[[], None]]
"""A write, and what is so once it was accepted."""


@dataclass
class Run:
    """What has been written so far."""

    dice: random.Random
    number: int = 0
    sessions: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    taken_back: list[CallsAccepted] = field(default_factory=list)

    def draw(self) -> Step:
        """The next write."""
        many = [self.session, self.batch, self.block, self.end] * 2
        return self.dice.choice([*many, self.undo, self.close, self.delete])()

    def session(self) -> Step:
        """A session is opened."""
        self.number += 1
        made = replace(SESSION, id=f"s00-{self.number:016x}")
        return lambda store: store.insert_session(made, 1), lambda: self.sessions.append(made.id)

    def batch(self) -> Step:
        """Calls are accepted, with a value."""
        if not self.sessions:
            return self.session()
        session_id = self.dice.choice(self.sessions)
        numbers = [self._next() for _ in range(self.dice.randint(1, 4))]
        calls = [call(number, self.dice.randint(0, 90), session_id) for number in numbers]
        value = {f"g{numbers[0]}": b"x" * self.dice.randint(0, 20)}
        accepted = batch(*calls, values=value)

        def keep() -> None:
            self.calls += calls
            self.taken_back.append(accepted)

        return lambda store: store.insert_calls(accepted, 1), keep

    def block(self) -> Step:
        """A block is accepted."""
        if not self.sessions:
            return self.session()
        session_id, number = self.dice.choice(self.sessions), self._next()
        made = Block(
            session_id,
            f"b-{number}",
            number,
            number,
            "",
            "map",
            (),
            (Edge("all", f"all{number}"),),
            b"block",
            1_000,
            reserved_calls=self.dice.randint(1, 4),
            reserved_tokens=self.dice.randint(0, 200),
        )
        output = Variable(session_id, f"all{number}", "all", producer_block_id=made.id)
        accepted = CallsAccepted(session_id, (), (output,), (), blocks=(made,))
        return lambda store: store.insert_calls(accepted, 1), lambda: self.blocks.append(made)

    def end(self) -> Step:
        """A call is done or cancelled, or a block ends after an instance of it has."""
        if self.blocks and self.dice.random() < 0.4:
            return self._end_block(self.blocks.pop(self.dice.randrange(len(self.blocks))))
        if not self.calls:
            return self.batch()
        one = self.calls.pop(self.dice.randrange(len(self.calls)))
        changes = done(one, used=self.dice.randint(10, 200), value=b"y" * self.dice.randint(0, 30))
        if self.dice.random() < 0.3:
            cancelled = Variable(one.session_id, f"v{one.number}", "out", VariableState.CANCELLED)
            changes = Changes(
                calls=(replace(one, state=CallState.CANCELLED, attempt=self.dice.randint(0, 1), ended_ms=9),),
                variables=(cancelled,),
            )
        return lambda store: store.commit(one.session_id, changes, 1), _nothing

    def undo(self) -> Step:
        """A batch is taken back, of which nothing has ended."""
        left = set(self.calls)
        for accepted in self.taken_back:
            if left.issuperset(accepted.calls):
                self.taken_back.remove(accepted)
                self.calls = [one for one in self.calls if one not in accepted.calls]
                return partial(_take_back, accepted), _nothing
        return self.batch()

    def close(self) -> Step:
        """A session ends, with all that has not."""
        if not self.sessions:
            return self.session()
        session_id = self.sessions.pop(self.dice.randrange(len(self.sessions)))
        calls = [one for one in self.calls if one.session_id == session_id]
        blocks = [one for one in self.blocks if one.session_id == session_id]
        self.calls = [one for one in self.calls if one not in calls]
        self.blocks = [one for one in self.blocks if one not in blocks]
        closed = replace(SESSION, id=session_id, state=SessionState.CLOSED, ended_ms=9)
        changes = Changes(
            session=closed,
            calls=tuple(replace(one, state=CallState.CANCELLED, ended_ms=9) for one in calls),
            blocks=tuple(replace(one, state=BlockState.CANCELLED, ended_ms=9) for one in blocks),
        )
        return lambda store: store.commit(session_id, changes, 1), _nothing

    def delete(self) -> Step:
        """What has ended is taken off the bus, and deleted."""

        async def write(store: Store) -> None:
            found = await store.unpurged(0, 9_000, 10)
            await store.mark_purged(0, [session_id for _, session_id in found], 1)
            await store.delete_ended(0, 9_000, 10, 1)

        return write, _nothing

    def _end_block(self, block: Block) -> Step:
        instance = call(self._next(), 70, block.session_id, block_id=block.id)
        made = Variable(block.session_id, f"v{instance.number}", "out", producer_call_id=instance.id)
        ended = replace(block, state=BlockState.DONE, ended_ms=9)
        unfolded = Changes(new_calls=(instance,), new_variables=(made,), blocks=(block,))
        last = replace(done(instance, used=self.dice.randint(10, 99)), blocks=(ended,))

        async def write(store: Store) -> None:
            await store.commit(block.session_id, unfolded, 1)
            await store.commit(block.session_id, last, 1)

        return write, _nothing

    def _next(self) -> int:
        self.number += 1
        return self.number


async def _take_back(accepted: CallsAccepted, store: Store) -> None:
    await store.remove_calls(accepted, 1)


def _nothing() -> None:
    pass


async def outcome(store: Store, write: Write, times: int) -> str:
    """What a write came to, however often it was made."""
    told = ""
    for _ in range(times):
        try:
            await write(store)
        except Fault as fault:
            told = fault.kind.type
    return told


async def taken(store: Store) -> Taken:
    """What the tenant has."""
    tenant = await store.tenants.get(A)
    assert tenant is not None
    return tenant.taken


@pytest.mark.parametrize("seed", range(4))
async def test_both_stores_count_alike_and_right_whatever_is_written(seed: int, database_url: str) -> None:
    await schema.migrate(database_url, 10)
    memory = MemoryStore()
    async with opened(database_url, 5) as postgres:
        for store in (memory, postgres):
            await claim(store)
            await store.tenants.set_limits(A, LIMITS)
        run, refusals = Run(random.Random(seed)), 0
        for step in range(STEPS):
            (write, accepted), times = run.draw(), 1 + run.dice.randint(0, 1)
            told = [await outcome(store, write, times) for store in (memory, postgres)]
            where = f"seed {seed}, step {step}"
            assert told[0] == told[1], where
            assert await taken(memory) == await taken(postgres), where
            refusals += bool(told[0])
            if not told[0]:
                accepted()
        assert refusals
        assert await memory.tenants.recount() == []
        assert await postgres.tenants.recount() == []
        counted = await taken(postgres)
        assert replace(counted, token_budget=0) == replace(await _anew(postgres), token_budget=0)


async def _anew(store: Store) -> Taken:
    """What is counted when limits are set again."""
    tenant = await store.tenants.set_limits(A, LIMITS)
    assert tenant is not None
    return tenant.taken
