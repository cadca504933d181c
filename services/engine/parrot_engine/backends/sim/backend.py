"""The simulated backend. It keeps the contract of `Backend` and passes the same tests as a real one.

How long a step takes is set, not measured, so that fleets and faults can be tried on a laptop. What
it writes follows from the tokens of the context and from the sampling alone; temperature, `top_p`,
`top_k` and `min_p` are kept as `sampler` says, and a guide may be a choice.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Final

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
from parrot_engine.backends.contexts import Context, ContextTable, output_tokens
from parrot_engine.backends.sim.batch import Batch, FillJob, Job, OutputJob, Pace
from parrot_engine.backends.sim.kv import KvMemory, KvRequest
from parrot_engine.backends.sim.sampler import Sampler, prompt_logprobs
from parrot_engine.text.byte_tokens import ByteTokenizer

VERSION: Final = "2"
DEFAULT_KV_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SimOptions:
    """How the simulated engine behaves.

    Attributes:
        kv_tokens: what the KV memory holds, one whole window at least; 0: 1,048,576, or the window
            where that is larger.
        step_ms: the time of a step that only decodes.
        prefill_tokens_per_s: what each prefilled token adds to its step.
        step_tokens: prefilled tokens of one step at most.
        seed: another one gives other texts.
        varied: what is sampled without a seed differs each time, as it would from a real model.
    """

    model: str = "sim"
    capacity: int = 64
    context_window_tokens: int = 32_768
    kv_tokens: int = 0
    block_tokens: int = 32
    step_ms: float = 10.0
    prefill_tokens_per_s: float = 1e6
    step_tokens: int = 65_536
    seed: int = 0
    varied: bool = False
    with_bos: bool = False

    @property
    def kv_blocks(self) -> int:
        """The KV memory in blocks."""
        tokens = self.kv_tokens or max(DEFAULT_KV_TOKENS, self.context_window_tokens + self.block_tokens)
        return tokens // self.block_tokens


class SimBackend(Backend):
    """See the module."""

    def __init__(self, options: SimOptions | None = None) -> None:
        self._options = options = options or SimOptions()
        self._tokenizer = ByteTokenizer(with_bos=options.with_bos)
        self._contexts = ContextTable()
        self._memory = KvMemory(options.kv_blocks, options.block_tokens)
        pace = Pace(options.capacity, options.step_tokens, options.step_ms, options.prefill_tokens_per_s)
        self._batch = Batch(pace, self._memory)
        self._loop: asyncio.Task[None] | None = None
        self._dead: asyncio.Future[str] | None = None
        self._stopped = False

    @property
    def info(self) -> ModelInfo:
        options = self._options
        return ModelInfo(
            model=options.model,
            context_window_tokens=options.context_window_tokens,
            backend="sim",
            version=VERSION,
            dtype="none",
            kv_tokens=options.kv_blocks * options.block_tokens,
            block_tokens=options.block_tokens,
            capacity=options.capacity,
            attention="none",
            batch_invariant=True,
        )

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self._tokenizer

    async def start(self) -> None:
        info = self.info
        if info.kv_tokens < info.context_window_tokens:
            raise BackendError(
                f"kv_tokens is {info.kv_tokens:,}, in whole blocks of {info.block_tokens}; it must hold one "
                f"window of {info.context_window_tokens:,} tokens at least"
            )
        self._dead = asyncio.get_running_loop().create_future()
        self._loop = asyncio.create_task(self._batch.run(), name="sim-steps")
        self._loop.add_done_callback(self._steps_ended)

    async def stop(self) -> None:
        self._stopped = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._batch.kill()

    def die(self, reason: str) -> None:
        """Behaves as an engine whose process is gone, for tests of what follows."""
        if self._dead is not None and not self._dead.done():
            self._dead.set_result(reason)
        if self._loop is not None:
            self._loop.cancel()
        self._batch.kill()

    async def wait_dead(self) -> str:
        if self._dead is None:
            raise BackendDeadError("the simulated engine was not started")
        return await asyncio.shield(self._dead)

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
            if lazy:
                return FillResult(len(token_ids), len(context.tokens))
            cached = await self._compute(context, cache, priority)
            context.held = True
            for one in filter(None, map(self._contexts.get, ancestors)):
                one.held = self._memory.hold_beginning(one.context_id, context.context_id, len(one.tokens))
            length = len(context.tokens)
            return FillResult(len(token_ids), length, length - cached, cached)

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
            request = self._request(context, cache, private_to)
            job = self._output(sampling, request, priority, hold, step_ms)
            self._admit(job)
            try:
                while (step := await self._next(job)).finish_reason is None:
                    yield step
            finally:
                self._batch.remove(job)
            tokens = output_tokens(self._tokenizer, job.generated, "".join(job.pieces), step.finish_reason)
            context.append(tokens, private_to)
            context.held = context.held or hold
        yield replace(step, context_tokens=len(context.tokens))

    async def free_context(self, context_id: str) -> None:
        if self._contexts.free(context_id) is not None:
            self._memory.forget(context_id)

    async def release(self, context_id: str) -> None:
        self._memory.release(context_id)
        context = self._contexts.get(context_id)
        if context is not None:
            context.held = False

    async def expect_use(self, context_id: str, steps: float) -> None:
        if context_id in self._contexts:
            self._memory.expect_use(context_id, steps)

    def holds(self, context_id: str) -> bool:
        return self._memory.holds_any(context_id)

    def stats(self) -> BackendStats:
        return BackendStats(
            running=self._batch.running,
            waiting=self._batch.waiting,
            contexts=len(self._contexts),
            kv_used_fraction=self._memory.used_fraction,
            held_tokens=self._memory.held_tokens,
            free_tokens=self._memory.free_tokens,
            step_ms=self._batch.step_ms,
        )

    async def audit(self) -> KvAudit:
        return self._memory.audit()

    async def _compute(self, context: Context, cache: bool, priority: int) -> int:
        """Computes and holds a context's KV; returns how many of its tokens had theirs."""
        if not context.tokens or self._memory.holds(context.context_id, array("I", context.tokens)):
            return len(context.tokens)
        request = self._request(context, cache)
        self._check_window(request, 0)
        job = FillJob(request, priority, hold=True)
        self._admit(job)
        try:
            if not await job.done:
                raise BackendDeadError(self._why_dead())
        finally:
            self._batch.remove(job)
        return job.cached

    def _request(self, context: Context, cache: bool, private_to: str = "") -> KvRequest:
        return KvRequest(
            context.context_id,
            context.kv_parent_id,
            array("I", context.tokens),
            context.public_tokens,
            context.tenant or private_to,
            reads_cache=cache,
        )

    def _output(
        self, sampling: Sampling, request: KvRequest, priority: int, hold: bool, step_ms: float
    ) -> OutputJob:
        if not request.tokens:
            raise BackendError(f"context {request.context_id} is empty: there is nothing to generate from")
        self._check_window(request, sampling.max_tokens)
        prompt, seed, logprobs = request.tokens.tolist(), self._seed(sampling), sampling.prompt_logprobs
        request.recomputes = logprobs is not None
        return OutputJob(
            request,
            priority,
            hold,
            sampling=sampling,
            sampler=Sampler(prompt, sampling, seed),
            prompt_logprobs=() if logprobs is None else prompt_logprobs(prompt, logprobs, seed),
            step_ms=step_ms,
        )

    def _seed(self, sampling: Sampling) -> int:
        free = self._options.varied and sampling.temperature > 0 and sampling.seed is None
        return self._options.seed + (secrets.randbits(32) if free else 0)

    def _check_window(self, request: KvRequest, new_tokens: int) -> None:
        length, window = len(request.tokens) + new_tokens, self._options.context_window_tokens
        if length > window:
            raise BackendError(
                f"context {request.context_id} would have {length:,} tokens; the window is {window:,}"
            )

    def _admit(self, job: Job) -> None:
        if self._stopped or self._dead is None or self._dead.done():
            raise BackendDeadError(self._why_dead())
        self._batch.add(job)

    async def _next(self, job: OutputJob) -> Step:
        step = await job.steps.get()
        if step is None:
            raise BackendDeadError(self._why_dead())
        return step

    def _why_dead(self) -> str:
        if self._dead is None:
            return "the simulated engine was not started"
        return self._dead.result() if self._dead.done() else "the simulated engine was stopped"

    def _steps_ended(self, steps: asyncio.Task[None]) -> None:
        """Whoever waits for a step is told when there will be none."""
        if not steps.cancelled() and (error := steps.exception()) is not None:
            self.die(f"the simulated engine failed: {error!r}")
