"""What the GPU kernel serves of vLLM's models and settings; for everything else there is a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parrot_kernels.gpu import AttentionError
from parrot_kernels.vllm_backend.gpu_fit import geometry, unfit_config, unfit_layer, unfit_memory


def config(**changed: Any) -> Any:
    """vLLM's settings of a plain model on one GPU."""
    plain: dict[str, Any] = {
        "num_speculative_tokens": 0,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "is_mm_prefix_lm": False,
        "rswa_window": None,
        "dtype": torch.bfloat16,
        "kv_sharing_fast_prefill": False,
        "cache_dtype": "auto",
    }
    assert set(changed) <= set(plain)
    values = SimpleNamespace(**(plain | changed))
    return SimpleNamespace(
        model_config=values,
        parallel_config=values,
        cache_config=values,
        num_speculative_tokens=values.num_speculative_tokens,
    )


def layer(**changed: Any) -> Any:
    plain: dict[str, Any] = {
        "attn_type": "decoder",
        "sliding_window": (-1, -1),
        "alibi_slopes": None,
        "logits_soft_cap": 0,
        "sinks": None,
    }
    assert set(changed) <= set(plain)
    return SimpleNamespace(**(plain | changed))


class FullAttentionSpec(SimpleNamespace):
    """By vLLM's name."""


class SinkFullAttentionSpec(FullAttentionSpec):
    """Derived, as vLLM's own is."""


PLAIN: dict[str, Any] = {
    "num_kv_heads": 8,
    "head_size": 128,
    "block_size": 64,
    "sliding_window": None,
    "attention_chunk_size": None,
    "non_causal": False,
}


def spec(**changed: Any) -> Any:
    return FullAttentionSpec(**(PLAIN | changed))


def test_a_plain_model_is_served() -> None:
    assert not unfit_config(config(), batch_invariant=False)
    assert not unfit_layer(layer())
    assert not unfit_memory(spec())


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (SinkFullAttentionSpec(**PLAIN), "SinkFullAttentionSpec"),
        (spec(sliding_window=512), "window"),
        (spec(attention_chunk_size=8192), "chunks"),
        (spec(non_causal=True), "later ones"),
    ],
)
def test_kv_that_is_kept_otherwise_has_a_reason(of: Any, why: str) -> None:
    assert why in unfit_memory(of)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"num_speculative_tokens": 3}, "drafted"),
        ({"decode_context_parallel_size": 2}, "spread"),
        ({"prefill_context_parallel_size": 2}, "spread"),
        ({"is_mm_prefix_lm": True}, "images"),
        ({"rswa_window": 512}, "window"),
        ({"kv_sharing_fast_prefill": True}, "skip prompts"),
    ],
)
def test_settings_it_does_not_serve_have_a_reason(changed: dict[str, Any], why: str) -> None:
    assert why in unfit_config(config(**changed), batch_invariant=False)


def test_outputs_that_must_not_depend_on_the_batch_are_not_planned() -> None:
    assert "independent" in unfit_config(config(), batch_invariant=True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"sliding_window": (1023, 0)}, "sliding window"),
        ({"sliding_window": (0, 0)}, "sliding window"),
        ({"alibi_slopes": torch.ones(4)}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
        ({"sinks": torch.ones(4)}, "sinks"),
    ],
)
def test_layers_it_does_not_serve_have_a_reason(changed: dict[str, Any], why: str) -> None:
    assert why in unfit_layer(layer(**changed))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("cache", "kv"),
    [("auto", None), ("same", None), ("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn")],
)
def test_types_are_the_kernels_own(dtype: str, cache: str, kv: str | None) -> None:
    settings = config(dtype=getattr(torch, dtype), cache_dtype=dtype if cache == "same" else cache)
    made = geometry(settings, spec(), query_heads=32)
    assert (made.query_type, made.kv_type, made.group) == (dtype, kv or dtype, 4)


@pytest.mark.parametrize(
    ("settings", "of", "heads", "why"),
    [
        (config(dtype=torch.float32), spec(), 32, "queries of torch.float32"),
        (config(cache_dtype="fp8_e5m2"), spec(), 32, "KV of fp8_e5m2"),
        (config(cache_dtype="float16"), spec(), 32, "KV of float16"),
        (config(cache_dtype="nvfp4"), spec(), 32, "KV of nvfp4"),
        (config(), spec(head_size=80), 32, "heads of 80 dims"),
        (config(), spec(head_size_v=64), 32, "values of 64 dims"),
        (config(), spec(block_size=40), 32, "blocks of 40 tokens"),
        (config(), spec(), 33, "33 query heads"),
    ],
)
def test_what_no_kernel_is_made_for_is_refused(settings: Any, of: Any, heads: int, why: str) -> None:
    with pytest.raises(AttentionError, match=why):
        geometry(settings, of, heads)
