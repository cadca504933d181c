"""A round of upkeep comes to an end of what is due, past what can't be done now."""

from __future__ import annotations

from typing import cast

import pytest

from parrot_manager.core.model import Session, SessionState
from parrot_manager.store.leases import Member
from parrot_manager.store.memory import MemoryStore
from parrot_manager.upkeep import SESSIONS_A_ROUND, delete_ended, purge_ended
from parrot_manager.values import Values
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

ME = Member("m-1", "only", "here:1")
MANY = 2 * SESSIONS_A_ROUND + 50


class Bus:
    """Purges all but some."""

    def __init__(self, *stuck: str) -> None:
        self.stuck = stuck
        self.purged: set[str] = set()

    async def purge(self, tenant: str, session_id: str) -> None:
        if session_id in self.stuck:
            raise TimeoutError
        self.purged.add(session_id)


class Narrow(MemoryStore):
    """Deletes only a few sessions at once, and only when asked for no more than that."""

    async def delete_ended(self, shard: int, ended_before_ms: int, limit: int, epoch: int) -> int:
        if limit > 7:
            raise Fault(errors.UNAVAILABLE, "too much at once")
        return await super().delete_ended(shard, ended_before_ms, limit, epoch)


async def filled(store: MemoryStore) -> list[str]:
    """Sessions that have ended."""
    await store.leases.join(ME, range(1), 60)
    await store.leases.claim(ME, [0])
    names = [f"s00-{number:016x}" for number in range(MANY)]
    for place, name in enumerate(names):
        ended = Session(name, "default", "", SessionState.CLOSED, 1, 9, ended_ms=place + 1)
        await store.insert_session(ended, 1)
    return names


async def test_all_that_is_due_is_purged_in_one_round_but_for_what_is_stuck() -> None:
    store = MemoryStore()
    names = await filled(store)
    bus = Bus(names[0], names[150])
    assert await purge_ended(store, cast(Values, bus), 0, 1, MANY + 2) == MANY - 2
    assert bus.purged == set(names) - {names[0], names[150]}
    assert await store.unpurged(0, MANY + 2, 10) == [("default", names[0]), ("default", names[150])]


async def test_what_is_too_much_for_one_write_is_deleted_in_smaller_parts() -> None:
    store = Narrow()
    names = await filled(store)
    await store.mark_purged(0, names, 1)
    assert await delete_ended(store, 0, 1, MANY + 2) == MANY
    assert await store.load_session("default", names[7]) is None
