"""`VllmBackend`: contexts in this process, their KV in vLLM's."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import structlog

from parrot_engine.backends.base import (
    Backend,
    BackendError,
    BackendStats,
    FillResult,
    IntegrityError,
    KvAudit,
    ModelInfo,
    Sampling,
    Step,
)
from parrot_engine.backends.contexts import Context, ContextTable, output_tokens
from parrot_engine.backends.vllm.arguments import sequences
from parrot_engine.backends.vllm.link import DEATH_POLL_S, VllmLink
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.backends.vllm.parameters import check_guide, fill_params, output_params, step_of
from parrot_engine.backends.vllm.wire import Ancestor, Books, Errand
from parrot_engine.models import ModelError, find_model
from parrot_engine.text.tokens import ModelTokenizer, TokenizerError

KEEP_ALIVE_S: Final = 60.0

log = structlog.get_logger()


@dataclass(slots=True)
class _Kv:
    """What is known here of a context's KV; the other process may know better."""

    held_tokens: int = 0
    steps: float = 0.0


class VllmBackend(Backend):
    """See the module."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._client = uuid4().hex
        self._contexts = ContextTable()
        self._kv: dict[str, _Kv] = {}
        self._in_flight = 0
        self._books = Books()
        self._link: VllmLink | None = None
        self._tokenizer: ModelTokenizer | None = None
        self._keeping_alive: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def info(self) -> ModelInfo:
        return self._running.info

    @property
    def tokenizer(self) -> ModelTokenizer:
        if self._tokenizer is None:
            raise BackendError("vLLM was not started")
        return self._tokenizer

    async def start(self) -> None:
        loading = asyncio.create_task(asyncio.to_thread(self._load), name="vllm-load")
        try:
            self._link = await asyncio.shield(loading)
        except asyncio.CancelledError:
            # A thread can't be cancelled; without its engine process it gives up.
            self._stopped = True
            while not loading.done():
                for process in multiprocessing.active_children():
                    process.terminate()
                await asyncio.wait((loading,), timeout=DEATH_POLL_S)
            raise
        await self._link.look()
        self._keeping_alive = asyncio.create_task(self._keep_alive(), name="vllm-keep-alive")

    async def stop(self) -> None:
        self._stopped = True
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()
            await asyncio.gather(self._keeping_alive, return_exceptions=True)
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def wait_dead(self) -> str:
        while self._stopped or not self._running.dead:  # noqa: ASYNC110  (vLLM has no event for it)
            await asyncio.sleep(DEATH_POLL_S)
        return "vLLM's engine process ended unexpectedly; its output above says why"

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
            result = FillResult(len(token_ids), len(context.tokens))
            if lazy or not context.tokens:
                return result
            if self._known(context_id).held_tokens == len(context.tokens):
                return replace(result, cached_tokens=len(context.tokens))
            ways = {"cache": cache, "step_ms": step_ms, "ahead": ahead}
            return await self._compute(context, result, priority, ancestors, **ways)

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
            resumed = self.tokenizer.encode_value(sampling.resumed) if sampling.guide else []
            errand = self._errand(
                context,
                private_to,
                hold=hold,
                cache=cache,
                resumed=resumed,
                step_ms=step_ms,
                beside_share=beside_share,
            )
            params = output_params(sampling, errand)
            await check_guide(params, sampling)
            generated: list[int] = []
            text = ""
            last: Step | None = None
            async with aclosing(self._steps(sampling, params, context, priority)) as steps:
                async for step in steps:
                    generated += step.token_ids
                    text += step.text
                    if step.finish_reason is None:
                        yield step
                    else:
                        last = step
            if last is None or last.finish_reason is None:
                raise BackendError("vLLM ended the output without a reason")
            context.append(output_tokens(self.tokenizer, generated, text, last.finish_reason), private_to)
            if hold:
                await self._held_output(context, last, cache, priority)
        yield replace(last, context_tokens=len(context.tokens))

    async def free_context(self, context_id: str) -> None:
        context = self._contexts.free(context_id)
        self._kv.pop(context_id, None)
        if context is not None and context.held:
            self._let_go(context_id)

    async def release(self, context_id: str) -> None:
        context = self._contexts.get(context_id)
        if context is not None and context.held:
            context.held = False
            self._known(context_id).held_tokens = 0
            self._let_go(context_id)

    async def expect_use(self, context_id: str, steps: float) -> None:
        if context_id in self._contexts:
            self._known(context_id).steps = steps
            self._running.send("parrot_expect_use", {context_id: steps})

    def holds(self, context_id: str) -> bool:
        known = self._kv.get(context_id)
        return known is not None and known.held_tokens > 0

    def stats(self) -> BackendStats:
        books, running = self._books, min(self._in_flight, sequences(self._options))
        return BackendStats(
            running=running,
            waiting=self._in_flight - running,
            contexts=len(self._contexts),
            kv_used_fraction=1 - books.free_blocks / max(1, books.total_blocks),
            held_tokens=books.held_tokens,
            free_tokens=books.free_blocks * self.info.block_tokens,
            step_ms=books.step_ms,
            token_ms=books.token_ms,
            piece_token_ms=books.piece_token_ms,
        )

    async def audit(self) -> KvAudit:
        await self._running.settle()
        answer = await self._running.call("parrot_audit")
        if faults := answer.pop("faults"):
            raise IntegrityError("the KV memory's books do not add up: " + "; ".join(faults))
        return KvAudit(**answer)

    @property
    def _running(self) -> VllmLink:
        if self._link is None:
            raise BackendError("vLLM is not running")
        return self._link

    async def _compute(
        self,
        context: Context,
        result: FillResult,
        priority: int,
        ancestors: Sequence[str] = (),
        **ways: Any,
    ) -> FillResult:
        """Computes a context's KV as far as it is not there, and holds it; `ways`: of its errand."""
        begins = [found for found in map(self._contexts.get, ancestors) if found is not None]
        errand = self._errand(
            context, hold=True, fill=True, ancestors=[self._ancestor(one) for one in begins], **ways
        )
        tokens = self._fillable(context)
        cached = 0
        async with aclosing(self._outputs(tokens, fill_params(errand), priority)) as outputs:
            async for output in outputs:
                cached = output.num_cached_tokens or 0
        for one in (context, *begins):
            if one is context or self._contexts.get(one.context_id) is one:
                one.held = True
                self._known(one.context_id).held_tokens = len(one.tokens)
            else:
                # It was freed meanwhile.
                self._let_go(one.context_id)
        return replace(result, computed_tokens=len(tokens) - cached, cached_tokens=cached)

    def _fillable(self, context: Context) -> Sequence[int]:
        """What of a context vLLM can take as a prompt: it wants room for one token more."""
        window = self.info.context_window_tokens
        if len(context.tokens) > window:
            raise BackendError(
                f"context {context.context_id} has {len(context.tokens)} tokens; the window is {window}"
            )
        return context.tokens[: window - 1]

    async def _held_output(self, context: Context, last: Step, cache: bool, priority: int) -> None:
        """Makes sure that what an output left is held."""
        if last.finish_reason == "stop_text":
            # vLLM finds stop texts on this side and aborts the request: nothing was held.
            await self._compute(context, FillResult(0, len(context.tokens)), priority, cache=cache)
        else:
            self._known(context.context_id).held_tokens = len(context.tokens) - 1

    def _ancestor(self, context: Context) -> Ancestor:
        steps = self._known(context.context_id).steps
        length = len(context.tokens)
        return Ancestor(context.context_id, length, context.tenant, context.public_tokens, steps)

    def _errand(self, context: Context, private_to: str = "", **what: Any) -> Errand:
        context.held = context.held or bool(what.get("hold"))
        return Errand(
            context.context_id,
            context.kv_parent_id,
            tenant=context.tenant or private_to,
            public_tokens=context.public_tokens,
            steps=self._known(context.context_id).steps,
            client=self._client,
            **what,
        )

    async def _steps(
        self, sampling: Sampling, params: Any, context: Context, priority: int
    ) -> AsyncGenerator[Step, None]:
        asked_at = time.monotonic()
        prompt = tuple(context.tokens)
        async with aclosing(self._outputs(prompt, params, priority)) as outputs:
            async for output in outputs:
                yield step_of(output, prompt, sampling, asked_at)

    async def _outputs(self, prompt: Sequence[int], params: Any, priority: int) -> AsyncGenerator[Any, None]:
        with self._counted():
            async with aclosing(self._running.outputs(prompt, params, priority)) as outputs:
                async for output in outputs:
                    yield output

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def _known(self, context_id: str) -> _Kv:
        return self._kv.setdefault(context_id, _Kv())

    def _let_go(self, context_id: str) -> None:
        self._running.send("parrot_free_contexts", [context_id], then=self._note_answer)

    def _note_answer(self, answer: Any) -> None:
        books = Books.of(answer)
        if books is not None:
            self._note(books)

    def _note(self, books: Books) -> None:
        if books.fault and not self._books.fault:
            log.error("the KV memory's books do not add up", fault=books.fault)
        self._books = books
        for context_id in books.dropped:
            if context_id in self._kv:
                self._kv[context_id].held_tokens = 0

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            self._running.send("parrot_keep_alive", self._client)

    def _load(self) -> VllmLink:
        try:
            folder = find_model(self._options.model, self._options.cache_dir, log.info)
            self._tokenizer = ModelTokenizer.load(folder.path)
        except (ModelError, TokenizerError) as error:
            raise BackendError(str(error)) from error
        return VllmLink.load(self._options, folder, self._note, lambda: not self._stopped)
