"""A stack with the real model, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.up import Up, data_folder, gone, running
from tests.support.waiting import until

LOADS_WITHIN_S = 420
"""On two busy cores, with the model's conversion."""


@pytest.fixture(scope="package")
def real_stack() -> Iterator[Up]:
    """`parrot up` with the packaged model on vLLM. At the end it is killed, and must leave nothing behind."""
    with data_folder() as folder, running(folder, "--backend", "vllm") as up:
        up.wait_up(LOADS_WITHIN_S)
        yield up
        assert up.process.poll() is None, up.texts()
        left = up.tree()
        up.process.kill()
        up.wait_exit()
        until(lambda: all(map(gone, left)), within_s=60)
