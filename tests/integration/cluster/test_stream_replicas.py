"""How many servers keep the streams: as many as the setting says or more, and never fewer by a start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.eventually import eventually
from tests.support.nats import temporary_nats
from tests.support.nats_cluster import NatsCluster

from parrot_runtime.errors import Fault
from parrot_runtime.ids import new_session_id
from parrot_runtime.values import streams, subjects
from parrot_runtime.values.bus import MANAGER, Bus, connected
from parrot_runtime.values.fences import Fences
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

WITHIN_S = 60.0


@pytest.fixture
async def single(cluster: NatsCluster) -> AsyncIterator[Bus]:
    """The bus of a manager that keeps one replica, which has just made the streams."""
    async with connected(cluster.url, "before", WITHIN_S, replicas=3) as bus:
        for name in subjects.STREAMS:
            await bus.js.delete_stream(name)
    async with connected(cluster.url, "m-1", WITHIN_S, replicas=1, role=MANAGER) as bus:
        yield bus


async def kept_by(bus: Bus) -> set[int]:
    """How many servers keep each stream."""
    return {(await bus.js.stream_info(name)).config.num_replicas or 0 for name in subjects.STREAMS}


async def test_replicas_are_added_under_services_that_run_and_these_learn_of_it(
    cluster: NatsCluster, single: Bus
) -> None:
    assert not single.is_replicated
    marks = await Fences(single).epochs("e-1", [3])
    async with (
        connected(cluster.url, "e", WITHIN_S, role="engine") as engine,
        connected(cluster.url, "m-2", WITHIN_S, replicas=3, role=MANAGER) as second,
    ):
        assert await kept_by(second) == {3}
        await eventually(lambda: single.replicas == engine.replicas == second.replicas == 3, WITHIN_S)
        names = SessionSubjects("default", new_session_id([3]))
        record = FinalRecord("v", "c", 1, text="under the mark of before")
        await Finals(engine).publish(names.final("v"), record, mark=marks[3])
        assert await Finals(single).read(names.final("v")) is not None


async def test_a_manager_with_fewer_replicas_set_and_one_that_knows_none_leave_them(
    cluster: NatsCluster, single: Bus
) -> None:
    async with connected(cluster.url, "m-2", WITHIN_S, replicas=3, role=MANAGER):
        pass
    async with connected(cluster.url, "m-3", WITHIN_S, replicas=1, role=MANAGER) as later:
        assert later.replicas == 3
        assert await kept_by(later) == {3}
        # A version without the setting updates a stream unless that has subjects it does not know.
        for before in streams.configs(1):
            kept = (await later.js.stream_info(before.name or "")).config
            assert set(kept.subjects or ()) > set(before.subjects or ())


async def test_a_server_alone_is_not_asked_for_replicas_in_vain() -> None:
    with temporary_nats() as server, pytest.raises(Fault, match=r"is no cluster .* --stream-replicas 1"):
        async with connected(server.url, "m", WITHIN_S, replicas=3, role=MANAGER):
            pass


async def test_whoever_is_no_manager_waits_for_one_to_make_the_streams() -> None:
    with temporary_nats() as server:
        with pytest.raises(Fault, match="is a manager running"):
            async with connected(server.url, "e", 0.5, role="engine"):
                pass
        entering = asyncio.create_task(entered(server.url))
        async with connected(server.url, "m", WITHIN_S, role=MANAGER):
            assert await entering == 1


async def entered(url: str) -> int:
    """How many replicas an engine finds."""
    async with connected(url, "e", WITHIN_S, role="engine") as bus:
        return bus.replicas
