"""The vLLM backend with its own engine process: random use of a memory that is too small, guides, ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import random
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.integration.engine.backends import (
    PROMPT,
    context,
    generate,
    held,
    new_id,
    prompt,
    text_of,
    tokens_of,
    unique_tokens,
    until_audit,
    until_busy,
    until_idle,
)
from tests.support.tiny_model import kv_bytes, write_tiny_model
from tests.support.vllm_engine import InProcessEngine

from parrot_engine.backends.base import BackendDeadError, BackendError, Sampling, UnsupportedError
from parrot_engine.backends.vllm import VllmBackend, VllmOptions
from parrot_engine.backends.vllm.parameters import GuideError
from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.sampling import Guide

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # Whatever is kept of a process that died, with its sockets, is collected at any time.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WINDOW = 1024
BLOCKS = 48
"""A window takes 32 of them."""
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"sea": {"enum": ["north", "baltic"]}, "deep": {"type": "boolean"}},
        "required": ["sea", "deep"],
        "additionalProperties": False,
    }
)

DOCUMENT = '{"sea":"north","deep":true}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def options(folder: Path, **more: Any) -> VllmOptions:
    plain: dict[str, Any] = {
        "dtype": "float32",
        "context_window_tokens": WINDOW,
        "kv_cache_bytes": kv_bytes(BLOCKS),
    }
    return VllmOptions(str(folder), folder, capacity=6, **(plain | more))


@pytest.fixture(scope="module")
async def backend(anyio_backend: str, folder: Path) -> AsyncIterator[VllmBackend]:
    made = VllmBackend(options(folder))
    with warnings_of_vllm():
        await made.start()
        yield made
        await made.stop()


@contextlib.contextmanager
def warnings_of_vllm() -> Iterator[None]:
    """Leaves out what vLLM and torch warn of among themselves, and sockets left to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()


@pytest.fixture(scope="module")
def cold(folder: Path) -> Iterator[InProcessEngine]:
    """vLLM as it comes, without any cache."""
    engine = InProcessEngine(folder, kv_bytes(200), contexts=False)
    yield engine
    engine.close()


async def check_all_free(backend: VllmBackend) -> None:
    """Everything is freed, and every block comes back."""
    await until_idle(backend)
    await until_audit(backend, lambda books: books.free_blocks == books.total_blocks)


@dataclass
class _User:
    """Uses contexts of its own at random, and keeps what was asked and what came."""

    backend: VllmBackend
    source: random.Random
    contexts: dict[str, list[int]] = field(default_factory=dict)
    asked: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def pick(self) -> str:
        return self.source.choice(list(self.contexts)) if self.contexts else ""

    def tokens(self) -> list[int]:
        """Few different texts, so that prefixes meet."""
        seed, count = self.source.randrange(4), self.source.randrange(1, 250)
        return [random.Random(seed * 1000 + at).randrange(100, 40_000) for at in range(count)]

    async def act(self) -> None:
        name, parent = new_id(), self.pick()
        if parent and self.source.random() < 0.4:
            name, parent = parent, ""
        action = self.source.choice(
            (self.fill, self.fill, self.generate, self.generate, self.broken_off, self.let_go)
        )
        await action(name, parent)

    def known(self, name: str, parent: str) -> list[int]:
        return self.contexts[name] if name in self.contexts else list(self.contexts.get(parent, ()))

    async def fill(self, name: str, parent: str) -> None:
        known, more = self.known(name, parent), self.tokens()
        if len(known) + len(more) < WINDOW - 40:
            lazy, cache = self.source.random() < 0.3, self.source.random() < 0.8
            result = await self.backend.fill(more, name, parent, lazy=lazy, cache=cache)
            assert result.context_tokens == len(known) + len(more)
            self.contexts[name] = known + more

    async def generate(self, name: str, parent: str) -> None:
        known = self.known(name, parent)
        if not 0 < len(known) < WINDOW - 40:
            return
        sampling = Sampling(max_tokens=self.source.randrange(1, 24), ignore_eos=True)
        what = {"hold": self.source.random() < 0.5, "cache": self.source.random() < 0.8}
        steps = await generate(self.backend, name, sampling, parent, **what)
        self.asked.append((known, tokens_of(steps)))
        kept = [token for token in tokens_of(steps) if token not in self.backend.tokenizer.control_ids]
        self.contexts[name] = known + kept
        assert steps[-1].context_tokens == len(self.contexts[name])

    async def broken_off(self, name: str, parent: str) -> None:
        known = self.known(name, parent)
        if not 0 < len(known) < WINDOW - 300:
            return
        task = asyncio.create_task(
            generate(self.backend, name, Sampling(max_tokens=200, ignore_eos=True), parent, hold=True)
            if self.source.random() < 0.5
            else self.backend.fill(self.tokens(), name, parent)
        )
        for _ in range(self.source.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if task.cancelled() and name in self.contexts:
            # As it was before: what comes next will tell.
            return
        await self.backend.free_context(name)
        self.contexts.pop(name, None)

    async def let_go(self, name: str, parent: str) -> None:
        name = self.pick()
        if name and self.source.random() < 0.5:
            await self.backend.release(name)
        elif name:
            await self.backend.free_context(name)
            del self.contexts[name]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_done_outputs_are_those_of_a_cold_engine_and_all_memory_comes_back(
    backend: VllmBackend, cold: InProcessEngine, seed: int
) -> None:
    users = [_User(backend, random.Random(100 * seed + number)) for number in range(6)]

    async def use(user: _User) -> None:
        for _ in range(25):
            await user.act()

    await asyncio.gather(*(use(user) for user in users))
    await backend.audit()
    for user in users:
        for name in user.contexts:
            await backend.free_context(name)
    await check_all_free(backend)
    asked = [pair for user in users for pair in user.asked]
    longest = max(len(output) for _, output in asked)
    again = cold.generate([known for known, _ in asked], longest, [Errand("")] * len(asked))
    for (_, output), reference in zip(asked, again, strict=True):
        assert output == list(reference.outputs[0].token_ids)[: len(output)]


async def test_a_cancel_at_any_moment_leaves_no_request_behind(backend: VllmBackend) -> None:
    context_id = await context(backend, unique_tokens(backend, 100))
    for pauses in range(40):
        task = asyncio.create_task(
            generate(backend, context_id, Sampling(max_tokens=800, ignore_eos=True), hold=True)
        )
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    books = await until_audit(backend, lambda books: not books.request_blocks)
    assert books.held_contexts == [context_id]
    await backend.free_context(context_id)
    await check_all_free(backend)


async def test_what_ended_by_a_stop_text_is_held_too(backend: VllmBackend) -> None:
    whole = text_of(await generate(backend, await prompt(backend), Sampling(max_tokens=30, ignore_eos=True)))
    context_id, stop = await prompt(backend), whole[len(whole) // 2 :][:3]
    steps = await generate(
        backend, context_id, Sampling(max_tokens=30, ignore_eos=True, stop=(stop,)), hold=True
    )
    assert steps[-1].finish_reason == "stop_text"
    assert await held(backend) == {context_id}
    again = await generate(backend, context_id, Sampling(max_tokens=1))
    assert again[0].cached_tokens == steps[-1].context_tokens - 1
    await backend.free_context(context_id)


async def guided(backend: VllmBackend, kind: Any, spec: str, resumed: str = "", **more: Any) -> str:
    """The text of an output under a guide, what it was resumed from included."""
    context_id = await prompt(backend)
    await backend.fill(backend.tokenizer.encode_value(resumed), context_id, lazy=True)
    sampling = Sampling(max_tokens=200, guide=Guide(kind, spec), resumed=resumed, **more)
    return resumed + text_of(await generate(backend, context_id, sampling))


@pytest.mark.parametrize("place", range(0, len(DOCUMENT) + 1, 3))
async def test_json_that_was_broken_off_anywhere_ends_as_one_document(
    backend: VllmBackend, place: int
) -> None:
    first = DOCUMENT[:place]
    document = json.loads(await guided(backend, "json_schema", SCHEMA, first))
    assert document["sea"] in ("north", "baltic")
    assert isinstance(document["deep"], bool)


async def test_nothing_follows_the_end_of_a_guide_even_where_the_models_end_is_ignored(
    backend: VllmBackend,
) -> None:
    assert await guided(backend, "regex", "[ab]{3}", ignore_eos=True) in {
        left + middle + right for left in "ab" for middle in "ab" for right in "ab"
    }


async def test_text_that_the_guide_does_not_allow_can_not_be_gone_on_from(backend: VllmBackend) -> None:
    with pytest.raises(GuideError, match="does not allow the text"):
        await guided(backend, "json_schema", SCHEMA, '{"sea":"red')
    assert await guided(backend, "regex", "yes", "y") == "yes"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json_schema", "{"),
        ("json_schema", '{"type": "no such type"}'),
        ("json_schema", '{"$ref": "#/nowhere"}'),
        ("json_schema", '{"type": "number", "multipleOf": 3}'),
        ("json_schema", "[" * 5000 + "]" * 5000),
        ("regex", "("),
        ("regex", "[z-a]"),
        ("regex", "a\0b"),
        ("regex", "(?<=a)b"),
        ("grammar", "root ::= nowhere"),
        ("grammar", "root ::="),
        ("grammar", "\ud800"),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
async def test_a_guide_that_is_wrong_is_named_and_harms_nobody(
    backend: VllmBackend, kind: str, spec: str
) -> None:
    other = asyncio.create_task(
        generate(backend, await prompt(backend), Sampling(max_tokens=40, ignore_eos=True))
    )
    with pytest.raises(BackendError, match=f"the {kind} guide"):
        await guided(backend, kind, spec)
    assert len(tokens_of(await other)) == 40


async def test_a_guide_and_a_least_length_contradict_each_other(backend: VllmBackend) -> None:
    with pytest.raises(UnsupportedError, match="min_tokens"):
        await guided(backend, "regex", "a", min_tokens=3)


async def test_a_prompt_that_is_empty_is_refused(backend: VllmBackend) -> None:
    with pytest.raises(BackendError):
        await generate(backend, new_id(), Sampling(max_tokens=1))


async def test_a_context_that_fills_the_window_can_be_held(backend: VllmBackend) -> None:
    context_id = await context(backend, unique_tokens(backend, WINDOW))
    assert await held(backend) == {context_id}
    assert (await backend.fill((), context_id)).cached_tokens == WINDOW
    await backend.free_context(context_id)
    await check_all_free(backend)


async def test_steps_are_timed_while_it_decodes(backend: VllmBackend) -> None:
    await generate(backend, await prompt(backend, PROMPT), Sampling(max_tokens=20, ignore_eos=True))
    assert backend.stats().step_ms > 0


async def test_a_memory_that_is_too_small_for_a_window_is_refused(folder: Path) -> None:
    backend = VllmBackend(options(folder, kv_cache_bytes=kv_bytes(WINDOW // 32)))
    with warnings_of_vllm():
        with pytest.raises(BackendError, match=r"can.t load|kv_cache_bytes"):
            await backend.start()
        await backend.stop()


async def test_when_its_process_dies_everyone_who_waits_is_told(folder: Path) -> None:
    others = set(multiprocessing.active_children())
    backend = VllmBackend(options(folder))
    with warnings_of_vllm():
        await backend.start()
        context_id = await context(backend, unique_tokens(backend, 100))
        output = asyncio.create_task(generate(backend, context_id, Sampling(max_tokens=800, ignore_eos=True)))
        await until_busy(backend)
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        with pytest.raises(BackendDeadError):
            await output
        assert "unexpectedly" in await backend.wait_dead()
        with pytest.raises(BackendDeadError):
            await backend.fill(unique_tokens(backend, 5), context_id)
        await backend.free_context(context_id)
        await backend.stop()
