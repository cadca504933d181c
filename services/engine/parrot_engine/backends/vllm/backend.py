"""The real backend: vLLM 0.32, on CPU or GPU.

A fill records tokens; a generate sends the whole context as its prompt, and vLLM's prefix cache
finds the KV that is there. vLLM is imported when the backend starts, never before: it takes
seconds and gigabytes.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from parrot_engine.backends.base import (
    Backend,
    BackendDeadError,
    BackendError,
    BackendStats,
    FillResult,
    FinishReason,
    ModelInfo,
    Phases,
    Sampling,
    Step,
)
from parrot_engine.backends.contexts import ContextTable, output_tokens
from parrot_engine.models import ModelError, ModelFolder, find_model
from parrot_engine.text.tokens import ModelTokenizer, TokenizerError

DEATH_POLL_S: Final = 0.2
CPU_BLOCK_TOKENS: Final = 32
"""vLLM's attention on CPU takes multiples of 32; the smallest shares prefixes best."""
CPU_WORKER: Final = "parrot_engine.backends.vllm_cpu_worker.MendedCPUWorker"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What to serve, and with how much.

    Attributes:
        context_window_tokens: 0: what the model has.
        kv_cache_bytes: memory for KV; must hold one whole window.
        step_tokens: tokens one engine step works on at most, prefill and decode together.
        threads: of the model's arithmetic; 0: one a core this process may use.
    """

    model: str
    cache_dir: Path
    model_name: str = ""
    dtype: str = "bfloat16"
    capacity: int = 16
    context_window_tokens: int = 0
    kv_cache_bytes: int = 1 << 30
    step_tokens: int = 512
    threads: int = 0


class VllmBackend(Backend):
    """See the module."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._contexts = ContextTable()
        self._request_ids = itertools.count()
        self._in_flight: dict[str, int] = {}
        """Requests, and the tokens whose KV each holds."""
        self._llm: Any = None
        self._info: ModelInfo | None = None
        self._tokenizer: ModelTokenizer | None = None
        self._stopped = False

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise BackendError("vLLM was not started")
        return self._info

    @property
    def tokenizer(self) -> ModelTokenizer:
        if self._tokenizer is None:
            raise BackendError("vLLM was not started")
        return self._tokenizer

    async def start(self) -> None:
        loading = asyncio.create_task(asyncio.to_thread(self._load), name="vllm-load")
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            # A thread can't be cancelled; without its engine process it gives up.
            self._stopped = True
            while not loading.done():
                for process in multiprocessing.active_children():
                    process.terminate()
                await asyncio.wait((loading,), timeout=DEATH_POLL_S)
            raise

    async def stop(self) -> None:
        self._stopped = True
        if self._llm is not None:
            llm, self._llm = self._llm, None
            await asyncio.to_thread(llm.shutdown)

    async def wait_dead(self) -> str:
        while self._stopped or not self._llm.errored:  # noqa: ASYNC110  (vLLM has no event for it)
            await asyncio.sleep(DEATH_POLL_S)
        return "vLLM's engine process ended unexpectedly; its output above says why"

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
            generated: list[int] = []
            pieces: list[str] = []
            last: Step | None = None
            async with aclosing(self._steps(sampling, list(tokens))) as steps:
                async for step in steps:
                    generated += step.token_ids
                    pieces.append(step.text)
                    if step.finish_reason is None:
                        yield step
                    else:
                        last = step
            if last is None or last.finish_reason is None:
                raise BackendError("vLLM ended the output without a reason")
            tokens.extend(output_tokens(self.tokenizer, generated, "".join(pieces), last.finish_reason))
        yield replace(last, context_tokens=len(tokens))

    async def free_context(self, context_id: str) -> None:
        self._contexts.free(context_id)

    def stats(self) -> BackendStats:
        in_flight = len(self._in_flight)
        running = min(in_flight, self._options.capacity)
        return BackendStats(
            running=running,
            waiting=in_flight - running,
            contexts=len(self._contexts),
            kv_used_fraction=min(1.0, sum(self._in_flight.values()) / max(1, self.info.kv_tokens)),
        )

    async def _steps(self, sampling: Sampling, prompt: list[int]) -> AsyncGenerator[Step, None]:
        """vLLM's outputs as steps. Closing it aborts the request."""
        from vllm import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        asked_at = time.monotonic()
        request_id = f"parrot-{next(self._request_ids)}"
        self._in_flight[request_id] = len(prompt)
        try:
            outputs = self._llm.generate(
                TokensPrompt(prompt_token_ids=prompt), _sampling_params(sampling), request_id
            )
            async with aclosing(outputs):
                async for output in outputs:
                    step = _step(output, len(prompt), asked_at)
                    self._in_flight[request_id] += len(step.token_ids)
                    yield step
        except EngineDeadError as error:
            raise BackendDeadError("vLLM's engine process is gone") from error
        except (EngineGenerateError, ValueError) as error:
            raise BackendError(f"vLLM could not generate: {error}") from error
        finally:
            del self._in_flight[request_id]

    def _load(self) -> None:
        try:
            folder = find_model(self._options.model, self._options.cache_dir, _say)
            self._tokenizer = ModelTokenizer.load(folder.path)
        except (ModelError, TokenizerError) as error:
            raise BackendError(str(error)) from error
        os.environ.update(_environment(self._options))
        _say(f"loading vLLM and {folder.path.name}")
        start = time.monotonic()
        try:
            self._start_vllm(folder)
        except Exception as error:
            raise BackendError(f"vLLM can't load {folder.path}: {error}") from error
        log.info("vLLM loaded", seconds=round(time.monotonic() - start, 1))

    def _start_vllm(self, folder: ModelFolder) -> None:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(**_engine_arguments(self._options, folder))
        config = arguments.create_engine_config()
        if self._stopped:
            raise BackendError("stopped while loading")
        self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False, stat_loggers=[])
        cache = config.cache_config
        self._info = ModelInfo(
            model=self._options.model_name or folder.name,
            context_window_tokens=config.model_config.max_model_len,
            backend="vllm",
            version=vllm.__version__,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            kv_tokens=(cache.num_gpu_blocks or 0) * cache.block_size,
            block_tokens=cache.block_size,
            capacity=self._options.capacity,
            tensor_parallel=config.parallel_config.tensor_parallel_size,
        )


def _say(line: str) -> None:
    log.info(line)


def _environment(options: VllmOptions) -> Mapping[str, str]:
    """What vLLM and what it stands on read from the environment, at import."""
    threads = options.threads or len(os.sched_getaffinity(0))
    return {
        # Without this the executor `uni` is silently turned into one that spins beside its worker.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Threads that wait by spinning take the cores from whatever else runs on a small machine: a
        # second engine then makes both more than ten times slower. Threads that sleep at once pay for
        # a wake-up in each of a step's hundreds of parallel regions. So: half a millisecond, then sleep.
        "GOMP_SPINCOUNT": "10000",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _engine_arguments(options: VllmOptions, folder: ModelFolder) -> dict[str, Any]:
    from vllm.platforms import current_platform

    arguments: dict[str, Any] = {
        "model": str(folder.path),
        "served_model_name": options.model_name or folder.name,
        "dtype": options.dtype,
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "enable_prefix_caching": True,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": options.kv_cache_bytes,
        "max_num_seqs": options.capacity,
        "max_num_batched_tokens": options.step_tokens,
        "seed": 0,
    }
    if current_platform.is_cpu():
        arguments["worker_cls"] = CPU_WORKER
    if options.context_window_tokens:
        arguments["max_model_len"] = options.context_window_tokens
    return arguments


def _sampling_params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
        stop=list(sampling.stop),
        output_kind=RequestOutputKind.DELTA,
    )


def _step(output: Any, prompt_tokens: int, asked_at: float) -> Step:
    completion = output.outputs[0]
    reason = _finish_reason(completion)
    return Step(
        text=completion.text,
        token_ids=tuple(completion.token_ids),
        prompt_tokens=prompt_tokens,
        cached_tokens=output.num_cached_tokens or 0,
        finish_reason=reason,
        phases=_phases(output.metrics, asked_at) if reason is not None else None,
    )


def _finish_reason(completion: Any) -> FinishReason | None:
    reason = completion.finish_reason
    if reason is None:
        return None
    if reason == "stop":
        return "stop_text" if isinstance(completion.stop_reason, str) else "stop"
    if reason == "length":
        return "length"
    raise BackendError(f"vLLM ended the output: {reason}")


def _phases(metrics: Any, asked_at: float) -> Phases:
    """From vLLM's timestamps, which are of the machine's one monotonic clock."""
    return Phases(
        queue_ms=max(0.0, metrics.scheduled_ts - asked_at) * 1000,
        prefill_ms=(metrics.first_token_ts - metrics.scheduled_ts) * 1000,
        decode_ms=(metrics.last_token_ts - metrics.first_token_ts) * 1000,
    )
