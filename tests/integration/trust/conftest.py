"""Certificates for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.postgres import PostgresServer, temporary_postgres


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The one the services of a test go by."""
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another one."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server the tests of this folder share, each with databases of its own."""
    with temporary_postgres() as server:
        yield server
