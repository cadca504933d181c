"""vLLM's attention on CPUs, in which decode rows go to the kernel that reads shared KV once.

KV memory, layouts and all that is not decoding are vLLM's own. A step's plan is made with its metadata,
once for all layers. Imported by vLLM, by name.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from parrot_kernels.cpu import CpuAttention, Layout
from parrot_kernels.native import unavailable
from parrot_kernels.plan import Capacity, Plan, Planner, Shape, TreeError
from parrot_kernels.plan.planner import Ints
from parrot_kernels.vllm_backend.register import NAME
from parrot_kernels.vllm_backend.rows import decode_rows, without_rows
from parrot_kernels.vllm_backend.tree import TreeRows

TILE_ROWS: Final = 64
LAYOUTS: Final = {"vec": Layout.ROWS, "amx": Layout.PAIRS}
"""vLLM's names of the layouts that the kernel reads."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ParrotCpuMetadata:
    """A step of which the first `rows` rows, and tokens, are the kernel's.

    Attributes:
        rest: of the rows behind them; None: there are none.
    """

    rows: int
    plan: Plan
    layout: Layout
    threads: int
    rest: CPUAttentionMetadata | None


class ParrotCpuBackend(CPUAttentionBackend):  # type: ignore[misc]
    """See the module."""

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[ParrotCpuImpl]:
        return ParrotCpuImpl

    @staticmethod
    def get_builder_cls() -> type[ParrotCpuMetadataBuilder]:
        return ParrotCpuMetadataBuilder


class ParrotCpuMetadataBuilder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Plans steps for a group of layers whose KV stands in the same blocks.

    Attributes:
        enabled: the kernel is used; False: vLLM's own op does everything.
        tree: what is known of the next step's rows.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tree = TreeRows()
        reason = self._unfit() or unavailable()
        self.enabled = not reason
        if reason:
            log.warning("vLLM's own attention is used instead of %s: %s", NAME, reason)
            return
        # vLLM puts rows of so many query tokens in front.
        self.reorder_batch_threshold = 1
        self._threads = torch.get_num_threads()
        group = self.num_heads // self.num_kv_heads
        shape = Shape(self.block_size, self.num_kv_heads, group, max(group, TILE_ROWS), self._threads)
        self._planner = Planner(shape, Capacity.of(self.vllm_config.scheduler_config.max_num_seqs))

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> ParrotCpuMetadata | CPUAttentionMetadata:
        """A step's metadata: vLLM's own, where there is nothing for the kernel."""
        common = common_attn_metadata
        rows = self._decode_rows(common)
        if not rows:
            return super().build(common_prefix_len, common, fast_build)
        plan = self._planned(common.block_table_tensor[:rows].numpy(), common.seq_lens[:rows].numpy())
        rest = None
        if common.num_actual_tokens > rows:
            rest = super().build(common_prefix_len, without_rows(common, rows), fast_build)
        return ParrotCpuMetadata(rows, plan, LAYOUTS[self.isa], self._threads, rest)

    def _decode_rows(self, common: Any) -> int:
        if not self.enabled or common.causal is not True:
            return 0
        return decode_rows(common.query_start_loc_cpu.numpy())

    def _planned(self, tables: Ints, lengths: Ints) -> Plan:
        for anew in (False, True):
            known = self.tree.order(len(lengths), anew=anew)
            if known is None:
                break
            with suppress(TreeError):
                return self._planner.plan_tree(tables, lengths, *known)
        return self._planner.plan(tables, lengths)

    def _unfit(self) -> str:
        """Why the kernel can't do these layers; empty: it can."""
        if self.is_cross_attention or self.is_encoder_only_attention:
            return "there is no sequence of the layers' own to go on with"
        if self.isa not in LAYOUTS:
            return f"vLLM lays KV out as {self.isa} on this processor"
        if self.head_dim % 32 or self.block_size % 32:
            return f"heads of {self.head_dim} and blocks of {self.block_size} are no multiples of 32"
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
        return next(filter(None, (_unfit(layer.impl) for layer in layers.values())), "")


class ParrotCpuImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """A layer."""

    def forward(  # noqa: PLR0917 - as vLLM calls it
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        **scales: Any,
    ) -> torch.Tensor:
        """Attention of one layer, as in vLLM's own class; the step's KV is in memory already."""
        step = attn_metadata
        if not isinstance(step, ParrotCpuMetadata):
            super().forward(layer, query, key, value, kv_cache, step, output, **scales)
            return output
        if step.rest is not None:
            others = query[step.rows :], key, value, kv_cache, step.rest, output[step.rows :]
            super().forward(layer, *others, **scales)
        keys, values = _keys_and_values(kv_cache)
        kernel = _kernel(step.plan.block_tokens, step.layout, self.scale, step.threads)
        kernel.attend(query[: step.rows], keys, values, step.plan, output[: step.rows])
        return output


def _keys_and_values(kv_cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """vLLM's KV memory, blocks x heads x tokens x (key and value), as vLLM's own op takes it.

    They are made for each layer of each step: who keeps them keeps memory that vLLM may free.
    """
    blocks, heads, tokens, numbers = kv_cache.shape
    return kv_cache.view(blocks, heads, 2, tokens, numbers // 2).unbind(2)


def _unfit(impl: Any) -> str:
    """Why the kernel can't do a layer; empty: it can."""
    unlike = {
        f"attention of the kind {impl.attn_type}": impl.attn_type != AttentionType.DECODER,
        "a sliding window": impl.sliding_window != -1,
        "ALiBi": impl.alibi_slopes is not None,
        "a soft cap": bool(impl.logits_soft_cap),
        "sinks": impl.sinks is not None,
        f"KV in {impl.kv_cache_dtype}": impl.is_fp8_kv_cache,
    }
    return next((f"the model has {what}" for what, there in unlike.items() if there), "")


@cache
def _kernel(block_tokens: int, layout: Layout, scale: float, threads: int) -> CpuAttention:
    """One for all layers that are alike: each has memory of its own for partial results."""
    return CpuAttention(block_tokens=block_tokens, layout=layout, scale=scale, threads=threads)
