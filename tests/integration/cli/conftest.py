"""A stack that the commands talk to."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.up import Up, data_folder, running


@pytest.fixture(scope="package")
def site() -> Iterator[Up]:
    """One engine, two managers."""
    with data_folder() as folder, running(folder, "--backend", "sim", "--managers", "2") as up:
        up.wait_up()
        yield up
        assert up.stop() == 0


@pytest.fixture
def http(site: Up) -> Iterator[httpx.Client]:
    """The API."""
    with httpx.Client(base_url=site.url, timeout=30) as client:
        yield client


@pytest.fixture
def server(site: Up, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server that commands find by their environment."""
    monkeypatch.setenv("PARROT_URL", site.url)
    monkeypatch.delenv("PARROT_API_KEY", raising=False)
    return site.url
