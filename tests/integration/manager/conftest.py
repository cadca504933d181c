"""Real Postgres and NATS for the manager's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.postgres import PostgresServer, temporary_postgres
from tests.support.quotas import claim

from parrot_manager.store import schema
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
async def store(database_url: str) -> AsyncIterator[Store]:
    """A Postgres store, its schema in place."""
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as opened_store:
        yield opened_store


@pytest.fixture(params=["memory", "postgres"])
async def counting_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Each of the stores, empty, with two shards claimed under epoch 1."""
    if request.param == "memory":
        made = MemoryStore()
        await claim(made)
        yield made
        return
    url: str = request.getfixturevalue("database_url")
    await schema.migrate(url, 10)
    async with opened(url, 5) as store:
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
