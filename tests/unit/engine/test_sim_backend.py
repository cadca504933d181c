"""What is the simulated backend's own: its pace, its memory's size, and its deaths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from parrot_engine.backends.base import BackendDeadError, BackendError
from parrot_engine.backends.pacing import LEAST_PREFILLED
from parrot_engine.backends.sim import SimBackend, SimOptions
from parrot_engine.sampling import Sampling

pytestmark = pytest.mark.anyio

SMALL = SimOptions(step_ms=0.0, capacity=8, context_window_tokens=512, kv_tokens=544, step_tokens=64)


@pytest.fixture
async def backend() -> AsyncIterator[SimBackend]:
    made = SimBackend(SMALL)
    await made.start()
    yield made
    await made.stop()


async def generate(backend: SimBackend, context_id: str, **settings: object) -> list[int]:
    sampling = Sampling(**({"max_tokens": 8, "ignore_eos": True} | settings))  # type: ignore[arg-type]
    async with aclosing(backend.generate(sampling, context_id)) as steps:
        return [token async for step in steps for token in step.token_ids]


async def test_a_memory_that_holds_no_window_is_refused() -> None:
    backend = SimBackend(SimOptions(context_window_tokens=100, kv_tokens=99))
    with pytest.raises(BackendError, match="window"):
        await backend.start()
    await backend.stop()


@pytest.mark.parametrize("window", [1, 31, 32, 33, 6_000_000])
async def test_by_itself_the_memory_is_large_enough(window: int) -> None:
    backend = SimBackend(SimOptions(context_window_tokens=window))
    await backend.start()
    assert backend.info.kv_tokens >= window
    await backend.stop()


async def test_a_prompt_that_would_outgrow_the_window_is_refused(backend: SimBackend) -> None:
    await backend.fill([65] * 500, "c")
    with pytest.raises(BackendError, match="512"):
        await generate(backend, "c", max_tokens=13)
    assert len(await generate(backend, "c", max_tokens=12)) == 12


async def test_the_time_of_decoding_steps_is_told_once_there_were_some(backend: SimBackend) -> None:
    assert backend.stats().step_ms == 0
    await backend.fill([65] * 100, "c")
    await generate(backend, "c")
    assert backend.stats().step_ms > 0


@pytest.mark.parametrize("step_ms", [0.0, 1e-6])
async def test_while_an_output_with_short_steps_is_written_little_is_prefilled_beside_it(
    backend: SimBackend, step_ms: float
) -> None:
    sampling = Sampling(max_tokens=100, ignore_eos=True)
    await backend.fill([65] * 8, "chat")
    async with aclosing(backend.generate(sampling, "chat", step_ms=step_ms)) as steps:
        await anext(steps)
        filling = asyncio.create_task(backend.fill([66] * 320, "long"))
        written = 0
        async for _ in steps:
            written += 1
            if filling.done():
                break
    # 320 tokens are 5 steps of this engine, and 10 of those that prefill the least there is.
    assert (written >= 320 // LEAST_PREFILLED) is bool(step_ms)
    assert (await filling).computed_tokens == 320


@pytest.mark.parametrize("how", ["die", "stop"])
async def test_whatever_waits_is_told_when_the_engine_ends(how: str) -> None:
    backend = SimBackend(SimOptions(step_ms=1e6))
    await backend.start()
    await backend.fill([65] * 10, "c", lazy=True)
    waiting = [
        asyncio.create_task(backend.fill([65], "a")),
        asyncio.create_task(generate(backend, "c")),
    ]
    await asyncio.sleep(0)
    if how == "die":
        backend.die("killed")
        assert await backend.wait_dead() == "killed"
    else:
        await backend.stop()
    for task in waiting:
        with pytest.raises(BackendDeadError):
            await task
    with pytest.raises(BackendDeadError):
        await generate(backend, "c")
    await backend.stop()


async def test_a_step_that_fails_is_a_death_and_not_a_silence(
    backend: SimBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parrot_engine.backends.sim.kv.KvMemory.begin", lambda *_: 1 / 0)
    with pytest.raises(BackendDeadError, match="ZeroDivisionError"):
        await backend.fill([65], "c")
    assert "ZeroDivisionError" in await backend.wait_dead()


class Machine:
    """Random work of many applications at once on a memory that is too small for it."""

    def __init__(self, backend: SimBackend, cold: SimBackend, seed: int) -> None:
        self.backend = backend
        self.cold = cold
        self.random = random.Random(seed)
        self.tokens: dict[str, list[int]] = {}
        self.made = 0

    async def application(self) -> None:
        for _ in range(12):
            context_id = self.random.choice(["", *self.tokens])
            tokens = self.tokens.pop(context_id, [])
            work = self.random.choice([self.fill, self.generate, self.generate, self.cancel, self.tell])
            self.made += 1
            name = context_id or f"c{self.made}"
            kept = await work(name, tokens)
            if self.random.random() < 0.2 or len(kept) > 300:
                await self.backend.free_context(name)
            else:
                self.tokens[name] = kept

    async def fill(self, name: str, tokens: list[int]) -> list[int]:
        parent, start = "", tokens
        idle = [one for one in self.tokens if len(self.tokens[one]) < 300]
        if not tokens and idle and self.random.random() < 0.7:
            parent = self.random.choice(idle)
            start = list(self.tokens[parent])
        more = [self.random.choice(b"abc ")] * self.random.randint(1, 60)
        lazy = self.random.random() < 0.3
        filled = await self.backend.fill(more, name, parent, lazy=lazy, priority=self.random.randint(0, 2))
        assert filled.context_tokens == len(start) + len(more)
        assert lazy or filled.computed_tokens + filled.cached_tokens == filled.context_tokens
        return start + more

    async def generate(self, name: str, tokens: list[int]) -> list[int]:
        if not tokens:
            return await self.fill(name, tokens)
        hold, count = self.random.random() < 0.5, self.random.randint(1, 100)
        sampling = Sampling(max_tokens=count, ignore_eos=True)
        async with aclosing(self.backend.generate(sampling, name, hold=hold)) as steps:
            output = [token async for step in steps for token in step.token_ids]
        self.made += 1
        plain = f"plain{self.made}"
        await self.cold.fill(tokens, plain, lazy=True)
        assert output == await generate(self.cold, plain, max_tokens=count)
        await self.cold.free_context(plain)
        return tokens + output

    async def cancel(self, name: str, tokens: list[int]) -> list[int]:
        if not tokens:
            return await self.fill(name, tokens)
        if self.random.random() < 0.5:
            task: asyncio.Task[Any] = asyncio.create_task(self.backend.fill([66] * 90, name))
        else:
            task = asyncio.create_task(generate(self.backend, name, max_tokens=90))
        for _ in range(self.random.randint(0, 9)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            done = task.result()
            tokens = tokens + (done if isinstance(done, list) else [66] * 90)
        length = (await self.backend.fill((), name, lazy=True)).context_tokens
        assert length == len(tokens)
        return tokens

    async def tell(self, name: str, tokens: list[int]) -> list[int]:
        await self.backend.expect_use(name, self.random.choice([0, 1, 5, float("inf")]))
        if self.random.random() < 0.3:
            await self.backend.release(name)
        return tokens if tokens else await self.fill(name, tokens)


@pytest.mark.parametrize("seed", range(8))
async def test_random_work_under_pressure_writes_what_a_cold_engine_writes(
    backend: SimBackend, seed: int
) -> None:
    cold = SimBackend(SimOptions(step_ms=0.0))
    await cold.start()
    machine = Machine(backend, cold, seed)
    await asyncio.gather(*(machine.application() for _ in range(12)))
    await backend.audit()
    for name in machine.tokens:
        await backend.free_context(name)
    books = await backend.audit()
    assert (books.free_blocks, books.held_contexts) == (books.total_blocks, ())
    assert backend.stats().contexts == 0
    await cold.stop()


async def test_what_is_sampled_without_a_seed_varies_only_where_it_is_asked_for() -> None:
    backend = SimBackend(SimOptions(step_ms=0.0, varied=True))
    await backend.start()
    await backend.fill([65] * 10, "c")
    texts: dict[str, list[list[int]]] = {}
    for name, settings in {
        "free": {"temperature": 1.0},
        "seeded": {"temperature": 1.0, "seed": 3},
        "greedy": {"temperature": 0.0},
    }.items():
        texts[name] = []
        for place in range(2):
            await backend.fill([65] * 10, f"{name}-{place}")
            texts[name].append(await generate(backend, f"{name}-{place}", max_tokens=40, **settings))
    await backend.stop()
    assert texts["free"][0] != texts["free"][1]
    assert texts["seeded"][0] == texts["seeded"][1]
    assert texts["greedy"][0] == texts["greedy"][1]
