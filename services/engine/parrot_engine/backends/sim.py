"""A simulated backend: no model, real batching, deterministic text and timing.

Steps run as an engine's do: each prefills what fits its budget and gives one token to every output
that is past its prefill. How long a step takes is set, not measured, so that fleets and faults can
be tested on a laptop. It keeps the contract of `Backend` and passes the same tests as a real one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from parrot_engine.backends.base import (
    Backend,
    BackendDeadError,
    BackendStats,
    FillResult,
    FinishReason,
    ModelInfo,
    Phases,
    Sampling,
    Step,
)
from parrot_engine.backends.contexts import ContextTable, output_tokens
from parrot_engine.backends.sim_model import PrefixCache, write
from parrot_engine.text.byte_tokens import EOS_ID, ByteTokenizer
from parrot_engine.text.stream import TextStream

VERSION: Final = "1"


@dataclass(frozen=True, slots=True)
class SimOptions:
    """How the simulated engine behaves.

    Attributes:
        step_ms: the time of a step that only decodes.
        prefill_tokens_per_s: what each prefilled token adds to its step.
        step_tokens: prefilled tokens of one step at most.
        seed: another one gives other texts.
    """

    model: str = "sim"
    capacity: int = 64
    context_window_tokens: int = 32_768
    kv_tokens: int = 1 << 20
    block_tokens: int = 32
    step_ms: float = 10.0
    prefill_tokens_per_s: float = 1e6
    step_tokens: int = 65_536
    seed: int = 0
    with_bos: bool = False


@dataclass(slots=True, eq=False)
class _Output:
    """One output in the batch."""

    prompt: list[int]
    sampling: Sampling
    tokens: Iterator[int]
    stream: TextStream
    to_prefill: int
    cached: int
    asked_at: float
    steps: asyncio.Queue[Step | None]
    """None: the backend died."""
    started_at: float = 0.0
    first_at: float = 0.0
    generated: list[int] = field(default_factory=list)
    text: str = ""

    def advance(self, now: float) -> Step:
        """Generates one token."""
        token = next(token for token in self.tokens if token != EOS_ID or self._may_end())
        self.generated.append(token)
        self.first_at = self.first_at or now
        text, reason = self._take(token)
        if reason in {"stop", "length"}:
            text += self.stream.finish()
        self.text += text
        return self._step(text, token, reason, now)

    def _take(self, token: int) -> tuple[str, FinishReason | None]:
        if token == EOS_ID:
            return "", "stop"
        count = len(self.generated)
        text, stopped = self.stream.push(bytes([token]), may_stop=count > self.sampling.min_tokens)
        if stopped:
            return text, "stop_text"
        return text, "length" if count == self.sampling.max_tokens else None

    def _may_end(self) -> bool:
        return not self.sampling.ignore_eos and len(self.generated) >= self.sampling.min_tokens

    def _step(self, text: str, token: int, reason: FinishReason | None, now: float) -> Step:
        phases = None
        if reason is not None:
            phases = Phases(
                queue_ms=(self.started_at - self.asked_at) * 1000,
                prefill_ms=(self.first_at - self.started_at) * 1000,
                decode_ms=(now - self.first_at) * 1000,
            )
        return Step(text, (token,), len(self.prompt), self.cached, reason, phases)


class SimBackend(Backend):
    """See the module."""

    def __init__(self, options: SimOptions | None = None) -> None:
        self._options = options or SimOptions()
        self._tokenizer = ByteTokenizer(with_bos=self._options.with_bos)
        self._contexts = ContextTable()
        self._cache = PrefixCache(self._options.kv_tokens, self._options.block_tokens)
        self._waiting: list[_Output] = []
        self._running: list[_Output] = []
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._dead: asyncio.Future[str] | None = None

    @property
    def info(self) -> ModelInfo:
        options = self._options
        return ModelInfo(
            model=options.model,
            context_window_tokens=options.context_window_tokens,
            backend="sim",
            version=VERSION,
            dtype="none",
            kv_tokens=options.kv_tokens,
            block_tokens=options.block_tokens,
            capacity=options.capacity,
        )

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self._tokenizer

    async def start(self) -> None:
        self._dead = asyncio.get_running_loop().create_future()
        self._loop = asyncio.create_task(self._run_steps(), name="sim-steps")

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    def die(self, reason: str) -> None:
        """Behaves as an engine whose process is gone, for tests of what follows."""
        if self._dead is not None and not self._dead.done():
            self._dead.set_result(reason)
        if self._loop is not None:
            self._loop.cancel()
        for output in self._waiting + self._running:
            output.steps.put_nowait(None)

    async def wait_dead(self) -> str:
        if self._dead is None:
            raise BackendDeadError("the simulated engine was not started")
        return await asyncio.shield(self._dead)

    async def fill(
        self, token_ids: Sequence[int], context_id: str, parent_context_id: str = ""
    ) -> FillResult:
        with self._contexts.use(context_id, parent_context_id) as tokens:
            tokens.extend(token_ids)
            return FillResult(len(token_ids), len(tokens))

    async def generate(
        self, sampling: Sampling, context_id: str, parent_context_id: str = ""
    ) -> AsyncGenerator[Step, None]:
        with self._contexts.use(context_id, parent_context_id) as tokens:
            output = self._admit(sampling, tokens)
            try:
                while True:
                    step = await self._next(output)
                    if step.finish_reason is None:
                        yield step
                        continue
                    tokens.extend(
                        output_tokens(self._tokenizer, output.generated, output.text, step.finish_reason)
                    )
                    break
            finally:
                self._remove(output)
            self._cache.add(tokens)
        yield replace(step, context_tokens=len(tokens))

    async def free_context(self, context_id: str) -> None:
        self._contexts.free(context_id)

    def stats(self) -> BackendStats:
        used = sum(len(output.prompt) + len(output.generated) for output in self._running)
        return BackendStats(
            running=len(self._running),
            waiting=len(self._waiting),
            contexts=len(self._contexts),
            kv_used_fraction=min(1.0, used / self._options.kv_tokens),
        )

    def _admit(self, sampling: Sampling, tokens: list[int]) -> _Output:
        seed = self._options.seed
        if sampling.temperature > 0:
            seed += 1 + (sampling.seed or 0)
        cached = self._cache.hit_tokens(tokens)
        output = _Output(
            prompt=tokens,
            sampling=sampling,
            tokens=write(tokens, seed % (1 << 64)),
            stream=TextStream(sampling.stop),
            to_prefill=len(tokens) - cached,
            cached=cached,
            asked_at=time.perf_counter(),
            steps=asyncio.Queue(),
        )
        if self._dead is None or self._dead.done():
            output.steps.put_nowait(None)
        self._waiting.append(output)
        self._work.set()
        return output

    async def _next(self, output: _Output) -> Step:
        step = await output.steps.get()
        if step is None:
            raise BackendDeadError(await self.wait_dead())
        return step

    def _remove(self, output: _Output) -> None:
        for outputs in (self._waiting, self._running):
            if output in outputs:
                outputs.remove(output)

    async def _run_steps(self) -> None:
        while True:
            if not self._running and not self._waiting:
                self._work.clear()
                await self._work.wait()
            self._start_waiting()
            prefilled = self._prefill()
            options = self._options
            await asyncio.sleep(options.step_ms / 1000 + prefilled / options.prefill_tokens_per_s)
            self._decode()

    def _start_waiting(self) -> None:
        free = self._options.capacity - len(self._running)
        now = time.perf_counter()
        for output in self._waiting[:free]:
            output.started_at = now
            self._running.append(output)
        del self._waiting[:free]

    def _prefill(self) -> int:
        """Shares the step's budget out, first come first served; returns the tokens prefilled."""
        left = self._options.step_tokens
        for output in self._running:
            taken = min(left, output.to_prefill)
            output.to_prefill -= taken
            left -= taken
        return self._options.step_tokens - left

    def _decode(self) -> None:
        now = time.perf_counter()
        for output in list(self._running):
            if output.to_prefill:
                continue
            if not output.generated:
                self._cache.add(output.prompt)
            step = output.advance(now)
            output.steps.put_nowait(step)
            if step.finish_reason is not None:
                self._running.remove(output)
