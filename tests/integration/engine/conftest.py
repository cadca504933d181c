"""Backends of every kind, a bus, and a manager that a test plays."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.engine.backends import KINDS, SMALL_KINDS, checked
from tests.integration.engine.harness import Reports, Session, programs_on
from tests.support.sim_upstream import SimUpstream, byte_tokenizer_folder
from tests.support.tiny_model import kv_bytes, write_tiny_model
from tests.support.vllm_server import VllmServer, vllm_server

from parrot_engine.backends.base import Backend
from parrot_engine.backends.openai import OpenAIBackend, OpenAIOptions
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.models import find_model
from parrot_engine.programs.table import Programs
from parrot_engine.settings import default_cache_dir
from parrot_runtime.values.bus import Bus, connected

WINDOW = 2048
SIM = SimOptions(step_ms=1.0, capacity=8, context_window_tokens=WINDOW)
SMALL_POOL_BLOCKS = 147


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest) -> Backend:
    backend: Backend = request.getfixturevalue(f"{request.param}_backend")
    return backend


@pytest.fixture(params=SMALL_KINDS)
def small_made(request: pytest.FixtureRequest) -> Backend:
    backend: Backend = request.getfixturevalue(f"small_{request.param}_backend")
    return backend


@pytest.fixture
async def backend(made: Backend) -> AsyncIterator[Backend]:
    """A backend of each kind."""
    async for lent in checked(made):
        yield lent


@pytest.fixture
async def small_backend(small_made: Backend) -> AsyncIterator[Backend]:
    """Each kind that holds KV, with room for little more than two windows of it."""
    async for lent in checked(small_made):
        yield lent


@pytest.fixture(scope="package")
async def vllm_backend(anyio_backend: str) -> AsyncIterator[Backend]:
    """The real engine with the real model, started once for these tests: it takes half a minute.

    float32, because equality is asserted.
    """
    async for backend in started_vllm("smollm2", 512 << 20):
        yield backend


@pytest.fixture(scope="package")
async def small_vllm_backend(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    """The real engine with a tiny model and a small pool."""
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    async for backend in started_vllm(str(folder), kv_bytes(SMALL_POOL_BLOCKS)):
        yield backend


@pytest.fixture
async def other_small_vllm_backend(tmp_path: Path) -> AsyncIterator[Backend]:
    """A second engine process with the same tiny model."""
    folder = write_tiny_model(tmp_path / "model")
    async for backend in started_vllm(str(folder), kv_bytes(SMALL_POOL_BLOCKS)):
        yield backend


async def started_vllm(model: str, kv_cache_bytes: int) -> AsyncIterator[Backend]:
    from parrot_engine.backends.vllm import VllmBackend, VllmOptions

    backend = VllmBackend(
        VllmOptions(
            model=model,
            cache_dir=default_cache_dir(),
            dtype="float32",
            context_window_tokens=WINDOW,
            kv_cache_bytes=kv_cache_bytes,
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
async def small_sim_backend() -> AsyncIterator[SimBackend]:
    backend = SimBackend(replace(SIM, kv_tokens=SMALL_POOL_BLOCKS * 32, step_tokens=512))
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
async def openai_backend(tmp_path: Path) -> AsyncIterator[OpenAIBackend]:
    """A server over the simulated model, behind HTTP."""
    async with SimUpstream(WINDOW) as upstream:
        backend = OpenAIBackend(
            OpenAIOptions(base_url=upstream.url, model="sim", tokenizer_dir=byte_tokenizer_folder(tmp_path))
        )
        await backend.start()
        yield backend
        await backend.stop()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM's own server with the real model, started once."""
    model = find_model("smollm2", default_cache_dir(), lambda line: None).path
    with vllm_server(model, "smollm2", WINDOW, tmp_path_factory.mktemp("vllm") / "log") as made:
        yield made


@pytest.fixture
async def served_backend(server: VllmServer) -> AsyncIterator[OpenAIBackend]:
    """The real server, behind HTTP."""
    model = find_model("smollm2", default_cache_dir(), lambda line: None).path
    backend = OpenAIBackend(OpenAIOptions(base_url=server.url, model="smollm2", tokenizer_dir=model))
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, "test", 5) as made:
        yield made


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
async def running(sim_backend: SimBackend, bus: Bus) -> AsyncIterator[tuple[Programs, Reports]]:
    async with programs_on(sim_backend, bus) as made:
        yield made


@pytest.fixture
def programs(running: tuple[Programs, Reports]) -> Programs:
    return running[0]


@pytest.fixture
def reports(running: tuple[Programs, Reports]) -> Reports:
    return running[1]
