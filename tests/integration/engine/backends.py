"""What the backends' suite does with a backend of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final
from uuid import uuid4

import pytest

from parrot_engine.backends.base import Backend, KvAudit, Sampling, Step

PROMPT: Final = "<|im_start|>user\nName the seas of Europe.<|im_end|>\n<|im_start|>assistant\n"
WAIT_S: Final = 60.0

VLLM_MARKS: Final = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SMALL_KINDS: Final = ["sim", pytest.param("vllm", marks=VLLM_MARKS)]
KINDS: Final = [*SMALL_KINDS, "openai", pytest.param("served", marks=VLLM_MARKS)]
"""`openai` is a server over the simulated model, `served` is vLLM's own over the real one."""


async def checked(backend: Backend) -> AsyncIterator[Backend]:
    """Lends a backend to one test, and finds every block of KV back after it."""
    yield backend
    await until_idle(backend)
    for context_id in (await backend.audit()).held_contexts:
        await backend.free_context(context_id)
    async with asyncio.timeout(WAIT_S):
        while (books := await backend.audit()).free_blocks < books.total_blocks:
            assert not books.held_contexts, "what is freed is held no longer"
            await asyncio.sleep(0)


def holds_kv(backend: Backend) -> None:
    """Leaves out a test of KV where there is none."""
    if not backend.info.kv_tokens:
        pytest.skip("this backend holds no KV")


def new_id() -> str:
    return f"test/{uuid4().hex}"


def unique_text(chars: int) -> str:
    """Text that no other test has used."""
    return "".join(uuid4().hex for _ in range(chars // 32 + 1))[:chars]


def unique_tokens(backend: Backend, count: int) -> list[int]:
    """Tokens of a text that no other test has used."""
    return backend.tokenizer.encode_value(unique_text(4 * count))[:count]


async def prompt(backend: Backend, text: str = PROMPT) -> str:
    """A new context with a prompt."""
    context_id = new_id()
    await backend.fill(backend.tokenizer.encode_template(text), context_id, lazy=True)
    return context_id


async def context(backend: Backend, tokens: list[int], **options: Any) -> str:
    """A new context with tokens, its KV held unless it is filled lazily."""
    context_id = new_id()
    await backend.fill(tokens, context_id, **options)
    return context_id


async def generate(
    backend: Backend, context_id: str, sampling: Sampling, parent_id: str = "", **options: Any
) -> list[Step]:
    async with aclosing(backend.generate(sampling, context_id, parent_id, **options)) as steps:
        return [step async for step in steps]


async def cached_tokens(backend: Backend, context_id: str, parent_id: str = "", **options: Any) -> int:
    """How many tokens of a context have their KV when it is generated from."""
    return (await generate(backend, context_id, Sampling(max_tokens=1), parent_id, **options))[
        -1
    ].cached_tokens


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


async def held(backend: Backend) -> set[str]:
    """The contexts whose KV is held."""
    return set((await backend.audit()).held_contexts)


async def until_audit(backend: Backend, holds: Any) -> KvAudit:
    """The books once `holds` is true of them: what is freed is told to another process first."""
    async with asyncio.timeout(WAIT_S):
        while not holds(books := await backend.audit()):  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0)
    return books


async def until_busy(backend: Backend) -> None:
    """Returns once something runs or waits."""
    async with asyncio.timeout(WAIT_S):
        while not (backend.stats().running or backend.stats().waiting):  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0)


async def until_idle(backend: Backend) -> None:
    """Returns once nothing runs and nothing waits."""
    async with asyncio.timeout(WAIT_S):
        while backend.stats().running or backend.stats().waiting:  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0)
