"""What a tenant with limits writes, and what of them it then has; for tests of stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Call,
    CallState,
    Edge,
    Ref,
    Session,
    SessionState,
    Usage,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.tenants import Taken, TenantLimits
from parrot_manager.store.base import Store
from parrot_manager.store.leases import Member
from parrot_runtime.errors import Fault

S = "s00-0000000000000001"
A = "tenant-a"
SESSION = Session(S, A, "", SessionState.OPEN, 1_000, 9_000)
EVERYTHING = TenantLimits(100, 100, 100_000, 1_000, 0, 1_000_000)
SLOW_S = 5
"""No test takes longer between two looks."""
ME = Member("m-1", "first", "here:1")


async def claim(store: Store) -> None:
    """Takes two shards, so that their epoch is 1."""
    await store.leases.join(ME, range(2), 60)
    assert await store.leases.claim(ME, range(2)) == {0: 1, 1: 1}


def call(number: int, tokens: int = 40, session_id: str = S, block_id: str = "") -> Call:
    """A call with one output, named after it, that reserves some tokens."""
    return Call(
        session_id,
        f"c-{number}",
        number,
        number,
        "f",
        "",
        (),
        (Edge("out", f"v{number}"),),
        b"" if block_id else b"spec",
        1_000,
        block_id=block_id,
        reserved_tokens=tokens,
    )


def batch(
    *calls: Call, values: dict[str, bytes] | None = None, blocks: tuple[Block, ...] = ()
) -> CallsAccepted:
    """What accepting calls stores."""
    given = values or {}
    session_id = calls[0].session_id if calls else S
    set_now = [
        Variable(session_id, name, name, VariableState.READY, size_bytes=len(data))
        for name, data in given.items()
    ]
    made = [Variable(one.session_id, f"v{one.number}", "out", producer_call_id=one.id) for one in calls]
    kept = tuple(Value(name, data) for name, data in given.items())
    return CallsAccepted(session_id, calls, (*made, *set_now), kept, blocks=blocks)


def done(one: Call, used: int = 30, value: bytes = b"made") -> Changes:
    """A call is done."""
    return Changes(
        calls=(replace(one, state=CallState.DONE, attempt=1, usage=Usage(10, 0, used - 10), ended_ms=4_000),),
        variables=(
            Variable(one.session_id, f"v{one.number}", "out", VariableState.READY, size_bytes=len(value)),
        ),
        values=(Value(f"v{one.number}", value),),
        attempts=(Attempt(Ref(one.session_id, one.id, 1), "e", AttemptState.DONE, 3_000, 4_000),),
    )


async def taken(store: Store, name: str = A) -> Taken:
    """What a tenant has now, what is left of its minute excepted."""
    tenant = await store.tenants.get(name)
    assert tenant is not None
    return replace(tenant.taken, token_budget=0)


async def left(store: Store, expected: int) -> bool:
    """Whether about so much of the minute is left: some has come back while the test ran."""
    tenant = await store.tenants.get(A)
    assert tenant is not None
    came_back = tenant.taken.token_budget - expected
    return -1 <= came_back < tenant.limits.tokens_per_minute / 60 * SLOW_S


async def refused(store: Store, accepted: CallsAccepted) -> Fault:
    """Why a batch is not taken."""
    with pytest.raises(Fault) as caught:
        await store.insert_calls(accepted, 1)
    return caught.value
