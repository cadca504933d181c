"""Contexts over a server that takes whole prompts.

A context is its tokens and nothing more, so a fill costs nothing and nothing is held. With the
model's tokenizer prompts are sent as token ids, and only template text yields control tokens; what
the server caches is kept apart by tenant where the server is vLLM. Without, prompts are sent as
text, a token is a byte of UTF-8, and both are the server's to decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import structlog

from parrot_engine.backends.base import (
    Backend,
    BackendDeadError,
    BackendError,
    BackendStats,
    FillResult,
    KvAudit,
    ModelInfo,
    Sampling,
    Step,
)
from parrot_engine.backends.contexts import Context, ContextTable
from parrot_engine.backends.openai.chunks import Chunk
from parrot_engine.backends.openai.client import (
    BusyError,
    OpenAIClient,
    OpenAIOptions,
    RemoteModel,
    UnreachableError,
)
from parrot_engine.backends.openai.output import OpenAIOutput
from parrot_engine.backends.openai.request import cache_salt, completion_body
from parrot_engine.backends.openai.tokens import TextTokens
from parrot_engine.text.tokens import ModelTokenizer, PromptTokenizer, TokenizerError

START_POLL_S: Final = 0.5

log = structlog.get_logger()


class OpenAIBackend(Backend):
    """See the module."""

    def __init__(self, options: OpenAIOptions) -> None:
        self._options = options
        self._contexts = ContextTable()
        self._client: OpenAIClient | None = None
        self._tokenizer: PromptTokenizer | None = None
        self._remote: RemoteModel | None = None
        self._info: ModelInfo | None = None
        self._health: asyncio.Task[str] | None = None
        self._running = 0
        self._seen_at = 0.0
        """When the server last showed that it is there."""

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise BackendError("the server was not asked yet")
        return self._info

    @property
    def tokenizer(self) -> PromptTokenizer:
        if self._tokenizer is None:
            raise BackendError("the server was not asked yet")
        return self._tokenizer

    async def start(self) -> None:
        self._client = OpenAIClient(self._options)
        self._tokenizer = await asyncio.to_thread(_load_tokenizer, self._options)
        self._remote = await self._wait_for_server(self._client)
        self._info = _model_info(self._options, self._remote)
        self._health = asyncio.create_task(self._watch(self._client), name="openai-health")

    async def stop(self) -> None:
        if self._health is not None:
            self._health.cancel()
            await asyncio.gather(self._health, return_exceptions=True)
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def wait_dead(self) -> str:
        if self._health is None:
            raise BackendDeadError("the server was not asked yet")
        return await asyncio.shield(self._health)

    async def fill(
        self,
        token_ids: Sequence[int],
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        lazy: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        ahead: bool = False,
        ancestors: Sequence[str] = (),
    ) -> FillResult:
        with self._contexts.use(context_id, parent_context_id, private_to) as context:
            context.append(token_ids, private_to)
            return FillResult(len(token_ids), len(context.tokens))

    async def generate(
        self,
        sampling: Sampling,
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        hold: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        beside_share: float = 0.0,
    ) -> AsyncGenerator[Step, None]:
        with self._contexts.use(context_id, parent_context_id, private_to) as context:
            body = self._body(sampling, context, cache_salt(context.tenant or private_to, cache=cache))
            output = OpenAIOutput(self.tokenizer, sampling, len(context.tokens), self._sends_ids)
            self._running += 1
            try:
                async with aclosing(self._chunks(body, sampling)) as chunks:
                    async for chunk in chunks:
                        step = output.take(chunk)
                        if step is not None:
                            yield step
                        if output.stopped:
                            break
            finally:
                self._running -= 1
            last = output.last_step()
            context.append(output.tokens(), private_to)
        yield replace(last, context_tokens=len(context.tokens))

    async def free_context(self, context_id: str) -> None:
        self._contexts.free(context_id)

    async def release(self, context_id: str) -> None:
        """Nothing is ever held."""

    async def expect_use(self, context_id: str, steps: float) -> None:
        """Nothing is ever held."""

    def holds(self, context_id: str) -> bool:
        return False

    def stats(self) -> BackendStats:
        return BackendStats(
            running=self._running, waiting=0, contexts=len(self._contexts), kv_used_fraction=0.0
        )

    async def audit(self) -> KvAudit:
        return KvAudit(total_blocks=0, free_blocks=0, held_blocks=0, request_blocks=0)

    @property
    def _sends_ids(self) -> bool:
        return self._options.tokenizer_dir is not None

    def _body(self, sampling: Sampling, context: Context, salt: dict[str, str]) -> dict[str, Any]:
        if not context.tokens:
            raise BackendError(f"context {context.context_id} is empty: there is nothing to generate from")
        is_vllm = self._remote is not None and self._remote.is_vllm
        prompt = context.tokens if self._sends_ids else self.tokenizer.decode(context.tokens)
        body = completion_body(self._options.model, prompt, sampling, is_vllm=is_vllm)
        return body | salt if is_vllm else body

    async def _chunks(self, body: dict[str, Any], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        if self._client is None or self._health is None:
            raise BackendDeadError("the connection to the server is closed")
        if self._health.done():
            raise BackendDeadError(self._health.result())
        async with aclosing(self._client.stream(body, sampling.logprobs or 0)) as chunks:
            async for chunk in chunks:
                self._seen_at = time.monotonic()
                yield chunk

    async def _wait_for_server(self, client: OpenAIClient) -> RemoteModel:
        """The model, as soon as the server answers."""
        deadline = time.monotonic() + self._options.start_timeout_s
        while True:
            try:
                return await client.model()
            except UnreachableError:
                if time.monotonic() + START_POLL_S > deadline:
                    raise
            await asyncio.sleep(START_POLL_S)

    async def _watch(self, client: OpenAIClient) -> str:
        """Returns why the server counts as dead, once it has been gone for long enough."""
        self._seen_at = time.monotonic()
        while True:
            await asyncio.sleep(self._options.health_every_s)
            try:
                await client.model()
                self._seen_at = time.monotonic()
            except BusyError:
                self._seen_at = time.monotonic()
            except BackendError as error:
                gone_s = time.monotonic() - self._seen_at
                log.warning("the server is not well", reason=str(error), seconds=round(gone_s, 1))
                if gone_s >= self._options.dead_after_s:
                    return f"{error}; for {gone_s:.0f} s"


def _load_tokenizer(options: OpenAIOptions) -> PromptTokenizer:
    if options.tokenizer_dir is None:
        return TextTokens()
    try:
        return ModelTokenizer.load(options.tokenizer_dir)
    except TokenizerError as error:
        raise BackendError(str(error)) from error


def _model_info(options: OpenAIOptions, remote: RemoteModel) -> ModelInfo:
    window = options.context_window_tokens or remote.window_tokens
    if not window:
        raise BackendError(
            f"{options.base_url} does not say how long {options.model}'s window is; "
            "say it with --context-window-tokens"
        )
    return ModelInfo(
        model=options.model_name or options.model,
        context_window_tokens=window,
        backend="openai",
        version=remote.owner or "unknown",
        dtype="unknown",
        kv_tokens=0,
        block_tokens=1,
        capacity=options.capacity,
        attention="unknown",
    )
