"""Shared by every test: async tests run on asyncio; one NATS server a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nats import temporary_nats


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A NATS server every test shares: use session ids of your own on it."""
    with temporary_nats() as server:
        yield server.url
