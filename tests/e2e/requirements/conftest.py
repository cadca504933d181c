"""One scripted system for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.rig import Rig, running_rig


@pytest.fixture(scope="package")
def rig() -> Iterator[Rig]:
    """Tests share it: each has sessions and scripts of its own."""
    with running_rig() as made:
        yield made
