"""Real Postgres and NATS for the manager's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.postgres import PostgresServer, temporary_postgres
from tests.support.quotas import claim
from tests.support.roles import migrated

from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import opened
from parrot_runtime.values.bus import Bus, connected


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server all tests of this folder share, each with databases of its own."""
    with temporary_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh, empty database; it goes with the test, for a hundred of them take a while to remove."""
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
async def store(postgres: PostgresServer, database_url: str) -> AsyncIterator[Store]:
    """A Postgres store as a manager has it: its schema in place, and not its own to change."""
    async with opened(await migrated(postgres, database_url), 5) as opened_store:
        yield opened_store


@pytest.fixture(params=["memory", "postgres"])
async def counting_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Each of the stores, empty, with two shards claimed under epoch 1."""
    if request.param == "memory":
        made = MemoryStore()
        await claim(made)
        yield made
        return
    given = request.getfixturevalue
    async with opened(await migrated(given("postgres"), given("database_url")), 5) as store:
        await claim(store)
        yield store


@pytest.fixture
async def memory() -> Store:
    """A store in memory."""
    return MemoryStore()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection of the test's own."""
    async with connected(nats_url, "test", 5) as connection:
        yield connection
