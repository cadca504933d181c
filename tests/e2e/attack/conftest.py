"""One server under attack for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.attack import Attack, running_attack


@pytest.fixture(scope="package")
def attack() -> Iterator[Attack]:
    """Two tenants of it."""
    with running_attack() as made:
        yield made
