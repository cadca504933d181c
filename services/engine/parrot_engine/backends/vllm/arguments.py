"""vLLM's arguments and environment, from the options and the platform alone."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from parrot_engine.backends.base import BackendError
from parrot_engine.backends.vllm.options import VllmOptions

CPU_BLOCK_TOKENS: Final = 32
"""vLLM's attention on CPU takes multiples of 32; the smallest shares prefixes best."""
CPU_ATTENTION: Final = "CPU_ATTN"
OWN_ATTENTION: Final = "PARROT"
"""The backend of `parrot_kernels`, which reads KV that several sequences share once."""
CPU_WORKER: Final = "parrot_engine.backends.vllm.cpu_worker.MendedCPUWorker"
CPU_LIBRARY: Final = "libnuma.so.1"
SCHEDULER: Final = "parrot_engine.backends.vllm.scheduler.ContextScheduler"
ASYNC_SCHEDULER: Final = "parrot_engine.backends.vllm.scheduler.AsyncContextScheduler"
COMPILERS: Final = ("g++", "c++", "clang++")
"""With none of them, what vLLM compiles for the first request with log probabilities is run as it stands."""
INVARIANT_CAPABILITY: Final = (9, 0)
"""The CUDA compute capability from which on vLLM's batch-invariant kernels run."""


def environment(options: VllmOptions) -> Mapping[str, str]:
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
        "VLLM_BATCH_INVARIANT": str(int(options.batch_invariant)),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({} if any(map(shutil.which, COMPILERS)) else {"TORCHDYNAMO_DISABLE": "1"}),
    }


def engine_arguments(options: VllmOptions, path: Path, name: str, *, on_cpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's `AsyncEngineArgs`.

    Args:
        path: the model's folder.
        name: what it is called on the API if the options don't say.

    Raises:
        BackendError: the platform can't do what the options ask for.
    """
    arguments: dict[str, Any] = {
        "model": str(path),
        "served_model_name": options.model_name or name,
        "dtype": options.dtype,
        "enable_prefix_caching": True,
        "max_num_seqs": sequences(options),
        "max_num_batched_tokens": options.step_tokens,
        "scheduling_policy": "priority",
        # One library, which refuses what it can't do, not whichever takes it. Where JSON allows blanks
        # without end, small models write them without end.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "tensor_parallel_size": options.tensor_parallel_size,
        "distributed_executor_backend": "uni" if options.tensor_parallel_size == 1 else "mp",
        "seed": 0,
    }
    if options.context_window_tokens:
        arguments["max_model_len"] = options.context_window_tokens
    return arguments | (_cpu_arguments(options) if on_cpu else _gpu_arguments(options))


def sequences(options: VllmOptions) -> int:
    """Requests in the batch at most: a fill must not wait until an output has ended."""
    return options.capacity + max(4, options.capacity // 2)


def check_invariance(options: VllmOptions, capability: tuple[int, int] | None) -> None:
    """Checks that outputs can be kept apart from what else is in the batch.

    Args:
        capability: the GPU's CUDA compute capability; None: it has none.

    Raises:
        BackendError: they can't.
    """
    if options.batch_invariant and (capability is None or capability < INVARIANT_CAPABILITY):
        raise BackendError(
            "batch_invariant needs an NVIDIA GPU of compute capability 9.0 or later, "
            f"and this is {'none' if capability is None else '.'.join(map(str, capability))}"
        )


def check_libraries() -> None:
    """Checks for what vLLM's kernels for CPUs are linked against; vLLM warns, and fails with the model.

    Raises:
        BackendError: it is not here.
    """
    try:
        ctypes.CDLL(CPU_LIBRARY)
    except OSError:
        raise BackendError(
            f"vLLM's kernels for CPUs need {CPU_LIBRARY}, which this system has not; install it "
            "(Debian and Ubuntu: apt-get install libnuma1)"
        ) from None


def attention(options: VllmOptions) -> str:
    """The attention backend by vLLM's name, which is in capitals; empty: vLLM's choice."""
    return options.attention.upper()


def scheduler(async_scheduling: bool) -> str:
    """The scheduler's class, by name: the one that suits how vLLM runs its steps."""
    return ASYNC_SCHEDULER if async_scheduling else SCHEDULER


def _cpu_arguments(options: VllmOptions) -> dict[str, Any]:
    if options.tensor_parallel_size != 1:
        raise BackendError("tensor_parallel_size needs as many GPUs; on CPU it is 1")
    if attention(options) not in ("", CPU_ATTENTION, OWN_ATTENTION):
        raise BackendError(
            f"there is no attention {options.attention} on CPU, only {CPU_ATTENTION} and {OWN_ATTENTION}"
        )
    if not options.kv_cache_bytes:
        raise BackendError("kv_cache_bytes must be given on CPU: memory for at least one window of KV")
    return {
        "enforce_eager": True,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": options.kv_cache_bytes,
        "worker_cls": CPU_WORKER,
        "attention_backend": attention(options) or CPU_ATTENTION,
    }


def _gpu_arguments(options: VllmOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {"enforce_eager": options.enforce_eager}
    if options.kv_cache_bytes:
        arguments["kv_cache_memory_bytes"] = options.kv_cache_bytes
    else:
        arguments["gpu_memory_utilization"] = options.gpu_memory_utilization
    if options.attention:
        arguments["attention_backend"] = attention(options)
    return arguments
