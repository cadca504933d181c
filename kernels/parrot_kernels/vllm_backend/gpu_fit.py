"""Which of vLLM's models and settings the GPU kernel can serve, and why it can't serve the others."""

from __future__ import annotations

from typing import Any, Final

import torch

from parrot_kernels.gpu import AttentionError, Geometry

_TYPES: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_EIGHT_BITS: Final = "float8_e4m3fn"
_DECODER: Final = "decoder"
_NO_WINDOW: Final = (-1, -1)
_PLAIN: Final = "FullAttentionSpec"
"""vLLM's name of KV of which every token stays; what is derived from it is read in other ways."""


def unfit_config(config: Any, *, batch_invariant: bool) -> str:
    """Why no layer can be served under this `VllmConfig`; empty: they can.

    Args:
        batch_invariant: outputs must not depend on what else is in the batch (`VLLM_BATCH_INVARIANT`); a
            plan is of the whole batch.
    """
    model, parallel = config.model_config, config.parallel_config
    unlike = {
        # Then only the device knows a row's length: how many of the drafts were taken.
        "tokens are drafted ahead": config.num_speculative_tokens > 0,
        "KV is spread over processes": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        "outputs must be independent of the batch": batch_invariant,
        "the model looks both ways within images": model.is_mm_prefix_lm,
        "the model looks at a prompt and a window": model.rswa_window is not None,
        "layers share KV and skip prompts": config.cache_config.kv_sharing_fast_prefill,
    }
    return next((what for what, there in unlike.items() if there), "")


def unfit_memory(spec: Any) -> str:
    """Why layers whose KV is kept as this `KVCacheSpec` says can't be served; empty: they can."""
    kind = type(spec).__name__
    if kind != _PLAIN:
        return f"KV is kept as {kind} says, not as {_PLAIN}"
    unlike = {
        "a window that the KV memory knows nothing of": spec.sliding_window is not None,
        "attention in chunks": spec.attention_chunk_size is not None,
        "tokens that see later ones": spec.non_causal,
    }
    return next((f"the model has {what}" for what, there in unlike.items() if there), "")


def unfit_layer(impl: Any) -> str:
    """Why a layer can't be served, from its `FlashAttentionImpl`; empty: it can."""
    unlike = {
        f"attention of the kind {impl.attn_type}": impl.attn_type != _DECODER,
        "a sliding window": impl.sliding_window not in (None, _NO_WINDOW),
        "ALiBi": impl.alibi_slopes is not None,
        "a soft cap": bool(impl.logits_soft_cap),
        "sinks": impl.sinks is not None,
    }
    return next((f"the model has {what}" for what, there in unlike.items() if there), "")


def geometry(config: Any, spec: Any, query_heads: int) -> Geometry:
    """What the kernel is to be made for.

    Args:
        config: vLLM's `VllmConfig`.
        spec: the layers' `FullAttentionSpec`.
        query_heads: on this GPU.

    Raises:
        AttentionError: there is no kernel for it.
    """
    query_type = _TYPES.get(config.model_config.dtype)
    if query_type is None:
        raise AttentionError(f"queries of {config.model_config.dtype}: float16 or bfloat16")
    if getattr(spec, "head_size_v", spec.head_size) != spec.head_size:
        raise AttentionError(f"keys of {spec.head_size} and values of {spec.head_size_v} dims: one size")
    return Geometry(
        query_heads,
        spec.num_kv_heads,
        spec.head_size,
        spec.block_size,
        query_type,
        _kv_type(config, query_type),
    )


def _kv_type(config: Any, query_type: str) -> str:
    """Of the KV memory, which vLLM calls by the command line's names."""
    name = config.cache_config.cache_dtype
    if name in ("auto", query_type):
        return query_type
    if name in ("fp8", "fp8_e4m3"):
        return _EIGHT_BITS
    raise AttentionError(f"KV of {name}: auto, {query_type} or fp8_e4m3")
