"""A cluster of three NATS servers that the tests of this folder share; each leaves it whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.nats_cluster import NatsCluster, temporary_cluster


@pytest.fixture(scope="session")
def servers() -> Iterator[NatsCluster]:
    """The servers, started."""
    with temporary_cluster() as started:
        yield started


@pytest.fixture
async def cluster(servers: NatsCluster) -> AsyncIterator[NatsCluster]:
    """The servers, all healthy."""
    await servers.healthy()
    yield servers
    servers.revive()
