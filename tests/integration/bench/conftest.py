"""What benchmarks run on: a Parrot and an OpenAI API, neither of which generates anything real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from tests.support.counting_upstream import CountingUpstream
from tests.support.up import Up, data_folder, running


@pytest.fixture(scope="package")
def site() -> Iterator[Up]:
    """One engine."""
    with data_folder() as folder, running(folder, "--backend", "sim") as up:
        up.wait_up()
        yield up
        assert up.stop() == 0


@pytest.fixture(scope="package")
def endpoint() -> Iterator[str]:
    """Where a client asks call by call."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(CountingUpstream()) as upstream,
    ):
        yield upstream.url
