"""Shared by every test: async tests run on asyncio; one NATS server a run; properties are not timed."""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings

from parrot_runtime.values.bus import connected
from tests.support.nats import temporary_nats

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _told_of_its_end(tell: Callable[..., Any]) -> Callable[..., Any]:
    def told(loop: BaseEventLoop, callback: Callable[..., Any], *given: Any, **more: Any) -> Any:
        # gRPC has one thread for the loops of all tests, and remembers those that are closed.
        if loop.is_closed() and getattr(callback, "__name__", "") == "_handle_callback_wrapper":
            return None
        return tell(loop, callback, *given, **more)

    return told


BaseEventLoop.call_soon_threadsafe = _told_of_its_end(BaseEventLoop.call_soon_threadsafe)  # type: ignore[assignment, method-assign]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A NATS server every test shares: use session ids of your own on it."""
    with temporary_nats() as server, ThreadPoolExecutor(1) as apart:
        # Managers make the streams, and in many tests there is none.
        apart.submit(asyncio.run, _made(server.url)).result()
        yield server.url


async def _made(url: str) -> None:
    async with connected(url, "tests", 10):
        return
