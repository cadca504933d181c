"""What has ended leaves the bus, and then the database, and what has not stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_engine import attached
from tests.support.manager import call, eventually, serving

from parrot_manager.settings import ManagerSettings
from parrot_manager.store.base import Store
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio

SOON: dict[str, Any] = {
    "purge_after_s": 0.0,
    "retain_s": 0.05,
    "upkeep_interval_s": 0.05,
    "keep_sessions_s": 0.2,
}


async def test_ended_sessions_are_deleted_when_they_were_kept_long_enough(store: Store, bus: Bus) -> None:
    finals = Finals(bus)
    async with serving(store, bus, **SOON) as manager, attached(manager.address, bus):
        old, alive = await manager.client.open(), await manager.client.open()
        for session in (old, alive):
            await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"}, key="k")
            await manager.client.ended(session, "b")
        await manager.client.close(old)

        async def gone() -> bool:
            return await store.load_session("default", old) is None

        await eventually(gone)
        assert await store.read_value(old, "b") is None
        assert await finals.read(SessionSubjects("default", old).final("b")) is None
        with pytest.raises(Fault) as refused:
            await manager.client.get(old, "b")
        assert refused.value.kind is errors.NOT_FOUND
        assert (await manager.client.get(alive, "b")).value == "text of b"
        assert await finals.read(SessionSubjects("default", alive).final("b")) is not None


async def test_without_a_limit_ended_sessions_stay(store: Store, bus: Bus) -> None:
    async with serving(store, bus, **{**SOON, "keep_sessions_s": 0.0}) as manager:
        session = await manager.client.open()
        await manager.client.set(session, "a", "kept")
        await manager.client.close(session)

        async def purged() -> bool:
            shards = manager.shell.shards.held
            found = await asyncio.gather(*(store.unpurged(shard, 1 << 62, 9) for shard in shards))
            return not any(found)

        await eventually(purged)
        assert (await manager.client.get(session, "a")).value == "kept"


@pytest.mark.parametrize("wrong", [{"keep_sessions_s": 10.0}, {"renew_s": 2.0}])
def test_settings_that_contradict_one_another_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least|at most"):  # noqa: RUF043 - either of them
        ManagerSettings(**wrong)


def test_a_limit_beyond_what_is_kept_elsewhere_is_taken() -> None:
    kept: dict[str, Any] = {"keep_sessions_s": 900.0}
    assert ManagerSettings(**kept).keep_sessions_s == 900
