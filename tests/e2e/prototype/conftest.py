"""A stack with simulated engines, for all tests of the prototype's programs and of its wire API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.up import Up, data_folder, running


@pytest.fixture(scope="package")
def stack() -> Iterator[Up]:
    """`parrot up` with a simulated engine."""
    with data_folder() as folder, running(folder, "--backend", "sim") as up:
        up.wait_up()
        yield up
        assert up.process.poll() is None, up.texts()


@pytest.fixture
def http(stack: Up) -> Iterator[httpx.Client]:
    """A client of its gateway."""
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        yield client
