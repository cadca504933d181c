"""The library's client: what waits for it ends, whatever it makes of a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from parrot_runtime.values import bus_client
from parrot_runtime.values.bus_client import end

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_cancellation_that_is_lost_is_repeated(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(bus_client, "CANCEL_S", 0.001)
    seen = 0

    async def waits() -> None:
        nonlocal seen
        for _ in range(lost):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            seen += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()
    assert seen == lost


async def test_what_has_ended_by_itself_keeps_its_result() -> None:
    async def fails() -> None:
        raise OSError("gone")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    await end(task)
    assert isinstance(task.exception(), OSError)
