"""Real Postgres and NATS for the manager's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.postgres import PostgresServer, temporary_postgres

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


@pytest.fixture
async def memory() -> Store:
    """A store in memory."""
    return MemoryStore()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection of the test's own."""
    async with connected(nats_url, "test", 5) as connection:
        yield connection
