"""Services that are told to stop, and started again, under load: no application notices."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.chaos.applications import Clients
from tests.chaos.cluster import Cluster, Size, running_cluster
from tests.chaos.verdict import read_rows, summary, violations
from tests.support.later_schema import later_release

from parrot_manager.store import schema

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

WITHIN_S: Final = {"gateway": 30.0, "m-1": 45.0, "m-2": 45.0, "e-1": 150.0, "e-2": 150.0}
"""The grace of their pods."""
QUIET_WITHIN_S: Final = 120.0


@asynccontextmanager
async def loaded(seed: int, size: Size, told: dict[str, Any]) -> AsyncIterator[Cluster]:
    """A cluster with applications on it. At the end all of them have ended, and nothing was broken.

    Args:
        told: gets a summary of what became of the applications.
    """
    async with running_cluster(size) as cluster:
        clients = Clients(cluster.url, random.Random(seed))
        running = asyncio.create_task(clients.run())
        try:
            yield cluster
            clients.stop()
            await asyncio.wait_for(asyncio.shield(running), QUIET_WITHIN_S)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        rows = await read_rows(cluster.postgres_url, clients.record.accepted)
        assert violations(clients.record, rows) == []
        told |= summary(clients.record, rows)
        assert told["calls"]


def errors_of(cluster: Cluster) -> list[str]:
    """What the services logged as an error, in all their lives."""
    found: list[str] = []
    for name, text in cluster.logs().items():
        if name in WITHIN_S:
            found += [f"{name}: {line}" for line in text.splitlines() if _is_error(line)]
    return found


def _is_error(line: str) -> bool:
    try:
        return json.loads(line).get("level") in {"error", "critical"}
    except ValueError:
        # None of ours: a library's, or a traceback.
        return True


async def replaced(cluster: Cluster, name: str) -> None:
    """Rolls a service, as Kubernetes would."""
    part = cluster.parts[name]
    assert await part.stop(WITHIN_S[name]) == 0, part.log.read_text()[-4000:]
    part.start()
    await part.ready()


async def test_every_service_is_replaced_under_load_with_the_next_schema_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    seed = secrets.randbelow(1 << 31)
    order = random.Random(seed).sample(sorted(WITHIN_S), len(WITHIN_S))
    told: dict[str, Any] = {}
    # A loaded machine's pauses are no reason to give an engine up.
    async with loaded(seed, Size(engine_drain_s=60.0, engine_silence_s=30.0), told) as cluster:
        with later_release(tmp_path):
            # Beside managers that don't know it: they go on, and start again on it.
            await schema.migrate(cluster.postgres_url, 60)
        for name in order:
            await replaced(cluster, name)
        assert errors_of(cluster) == []
    assert told["not_done"] == 0, (seed, told)


async def test_services_end_in_order_whichever_peer_is_away_and_go_on_when_it_is_back() -> None:
    seed = secrets.randbelow(1 << 31)
    async with loaded(seed, Size(), {}) as cluster:
        for away, stopped in (
            (["m-1", "m-2"], ["e-1"]),
            (["nats"], ["e-2", "m-1", "gateway"]),
            (["postgres"], ["m-2"]),
        ):
            for name in away:
                cluster.parts[name].kill()
            ends = (cluster.parts[name].stop(WITHIN_S[name]) for name in stopped)
            assert await asyncio.gather(*ends) == [0] * len(stopped), (seed, away)
            await cluster.start(*away, *stopped)
