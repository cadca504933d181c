"""What the vLLM backend is asked to serve, and with how much."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What to serve, and with how much.

    Attributes:
        capacity: outputs at once; fills run beside them.
        context_window_tokens: 0: what the model has.
        kv_cache_bytes: memory for KV; must hold one whole window. 0, on GPU only: what
            `gpu_memory_utilization` leaves.
        gpu_memory_utilization: share of each GPU's memory for weights, KV and work; GPU only.
        step_tokens: tokens one engine step works on at most, prefill and decode together.
        threads: of the model's arithmetic on CPU; 0: one a core this process may use.
        attention: the attention kernel by vLLM's name (`FLASH_ATTN`...), or `parrot`, this project's own;
            empty: vLLM's choice.
        batch_invariant: outputs don't depend on what else is in the batch; needs an NVIDIA GPU of
            compute capability 9.0 or later.
        tensor_parallel_size: GPUs that share the model.
        enforce_eager: no CUDA graphs and no compilation; always so on CPU.
    """

    model: str
    cache_dir: Path
    model_name: str = ""
    dtype: str = "bfloat16"
    capacity: int = 64
    context_window_tokens: int = 0
    kv_cache_bytes: int = 1 << 30
    gpu_memory_utilization: float = 0.9
    step_tokens: int = 512
    threads: int = 0
    attention: str = ""
    batch_invariant: bool = False
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
