"""Backends of both kinds, a bus, and a manager that a test plays."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator

import pytest

from parrot_engine.backends.base import Backend
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.backends.vllm import VllmBackend, VllmOptions
from parrot_engine.settings import default_cache_dir
from parrot_runtime.values.bus import Bus, connected

SIM = SimOptions(step_ms=1.0, capacity=8, context_window_tokens=2048)


@pytest.fixture(scope="package")
async def vllm_backend(anyio_backend: str) -> AsyncIterator[Backend]:
    """The real engine with the real model, started once for these tests: it takes half a minute.

    float32, because equality is asserted.
    """
    backend = VllmBackend(
        VllmOptions(
            model="smollm2",
            cache_dir=default_cache_dir(),
            dtype="float32",
            context_window_tokens=2048,
            kv_cache_bytes=512 << 20,
        )
    )
    with warnings.catch_warnings():
        # What vLLM and torch deprecate among themselves is not ours to mend.
        warnings.simplefilter("ignore")
        await backend.start()
    yield backend
    with warnings.catch_warnings():
        # vLLM leaves a socket context to the collector.
        warnings.simplefilter("ignore")
        await backend.stop()
        gc.collect()


@pytest.fixture
async def sim_backend() -> AsyncIterator[SimBackend]:
    backend = SimBackend(SIM)
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made
