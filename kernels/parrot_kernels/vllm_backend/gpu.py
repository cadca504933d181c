"""vLLM's FlashAttention, in which decode rows go to the kernel that reads shared KV once.

KV memory and all that is not decoding are FlashAttention's own. A step is planned with its metadata, once
for all layers, into buffers whose addresses stay; vLLM's CUDA graphs of decode steps hold the kernel, and
replay it over whatever plan was loaded last. Imported by vLLM, by name.

Plans are exact: vLLM's `seq_lens_cpu_upper_bound` is each row's length unless tokens are drafted ahead
(`CommonAttentionMetadata`), and then FlashAttention does everything, as it does for all that
`gpu_fit` names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm import _custom_ops as ops
from vllm import envs
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides, is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)

from parrot_kernels.gpu import AttentionError
from parrot_kernels.vllm_backend.gpu_fit import geometry, unfit_config, unfit_layer, unfit_memory
from parrot_kernels.vllm_backend.gpu_step import Steps
from parrot_kernels.vllm_backend.gpu_tables import observe
from parrot_kernels.vllm_backend.register import NAME
from parrot_kernels.vllm_backend.rows import decode_rows, without_rows

BLOCK_TOKENS: Final = 64
"""Blocks of so many tokens are read by TMA; smaller ones are gathered, which takes twice the registers."""

log = logging.getLogger(__name__)
observe()


@dataclass
class ParrotGpuMetadata(FlashAttentionMetadata):  # type: ignore[misc]
    """A step of which the first `rows` rows, and tokens, are the kernel's.

    Attributes:
        steps: whose loaded plan is theirs.
        rest: of the rows behind them; None: there are none.
    """

    rows: int = 0
    steps: Steps | None = None
    rest: FlashAttentionMetadata | None = None


class ParrotGpuBackend(FlashAttentionBackend):  # type: ignore[misc]
    """See the module."""

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[ParrotGpuImpl]:
        return ParrotGpuImpl

    @staticmethod
    def get_builder_cls() -> type[ParrotGpuMetadataBuilder]:
        return ParrotGpuMetadataBuilder

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        preferred: int = super().get_preferred_block_size(default_block_size)
        return max(BLOCK_TOKENS, preferred)

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        # The kernel takes one scale for keys and one for values.
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False


class ParrotGpuMetadataBuilder(FlashAttentionMetadataBuilder):  # type: ignore[misc]
    """Plans steps for a group of layers whose KV stands in the same blocks.

    Attributes:
        steps: the kernel's; None: FlashAttention does everything.
    """

    # A plan is of one group's block tables.
    supports_update_block_table = False

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Whole graphs hold decode steps; FlashAttention's own may hold more.

        Said of the settings and the KV memory alone, not of the layers and the GPU: where FlashAttention does
        everything because of these, whole graphs hold no more than decode steps all the same.
        """
        if cls._unfit(vllm_config, kv_cache_spec):
            return super().get_cudagraph_support(vllm_config, kv_cache_spec)
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.steps: Steps | None = None
        self._captured = False
        reason = self._unfit(vllm_config, kv_cache_spec) or self._unfit_layers()
        if not reason:
            # vLLM's older runner puts rows of so many query tokens in front; the other one does always.
            self.reorder_batch_threshold = 1
            reason = self._prepare(kv_cache_spec)
        if reason:
            log.warning("FlashAttention alone is used instead of %s: %s", NAME, reason)

    @classmethod
    def _unfit(cls, vllm_config: Any, kv_cache_spec: Any) -> str:
        if cls is not ParrotGpuMetadataBuilder:
            # vLLM derives builders that say other things of a batch than there are in it.
            return f"steps are told by {cls.__qualname__}"
        return unfit_config(vllm_config, batch_invariant=envs.VLLM_BATCH_INVARIANT) or unfit_memory(
            kv_cache_spec
        )

    def _unfit_layers(self) -> str:
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
        return next(filter(None, (unfit_layer(layer.impl) for layer in layers.values())), "")

    def _prepare(self, kv_cache_spec: Any) -> str:
        """Makes the kernel and its buffers; why it can't, or nothing."""
        rows = max(self.vllm_config.scheduler_config.max_num_seqs, self.max_cudagraph_size or 0)
        try:
            self.steps = Steps(geometry(self.vllm_config, kv_cache_spec, self.num_heads_q), rows, self.device)
        except AttentionError as error:
            return str(error)
        return ""

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        """A step's metadata: FlashAttention's own, where there is nothing for the kernel.

        Raises:
            PlanError: the step has more rows than vLLM said there would be.
            RuntimeError: it can't be planned, and a graph may be replayed over the plan before.
        """
        common = common_attn_metadata
        # What is built fast is for drafts: it must not take the place of the step's own plan.
        rows = 0 if self.steps is None or fast_build else self._decode_rows(common)
        if self.steps is None or not rows:
            return super().build(common_prefix_len, common, fast_build)
        lengths = common.seq_lens_cpu_upper_bound[:rows].numpy()
        self.steps.load(common.block_table_tensor, lengths, common.req_idx)
        rest = None
        # Behind them are whole prompts' rows, or a graph's padding, of no tokens.
        if int(common.query_start_loc_cpu[common.num_reqs]) > rows:
            rest = super().build(common_prefix_len, without_rows(common, rows), fast_build)
        return ParrotGpuMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            rows=rows,
            steps=self.steps,
            rest=rest,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> FlashAttentionMetadata:
        """The metadata of the batch that a graph is captured with."""
        self._captured = self.steps is not None
        return self.build(0, common_attn_metadata)

    def _decode_rows(self, common: Any) -> int:
        if common.causal is not True or common.seq_lens_cpu_upper_bound is None:
            if self._captured:
                raise RuntimeError(
                    f"{NAME} can't plan a step of which vLLM says no lengths on the host, or whose tokens "
                    "see later ones; use --attention-backend FLASH_ATTN with this model"
                )
            return 0
        return decode_rows(common.query_start_loc_cpu[: common.num_reqs + 1].numpy())


class ParrotGpuImpl(FlashAttentionImpl):  # type: ignore[misc]
    """A layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flash = FlashAttentionImpl(*args, **kwargs)
        self._eight_bits = is_quantized_kv_cache(self.kv_cache_dtype)
        # The kernel takes queries as they are; where FlashAttention wants them in eight bits, it gets them.
        self.supports_quant_query_input = False

    def forward(  # noqa: PLR0917  (as vLLM calls it)
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer, as in vLLM's own class; the step's keys and values are in memory."""
        step = attn_metadata
        scales = output_scale, output_block_scale
        if not isinstance(step, ParrotGpuMetadata) or step.steps is None:
            return self._rest(layer, query, key, value, kv_cache, step, output, *scales)
        # As FlashAttention's: vLLM asks for it only where `fused_output_quant_supported` says so.
        if any(scale is not None for scale in scales):
            raise NotImplementedError(f"{NAME} does not quantise its output")
        if step.rest is not None:
            self._rest(layer, query[step.rows :], key, value, kv_cache, step.rest, output[step.rows :])
        keys, values = self._keys_and_values(kv_cache)
        # A graph serves plans of as many rows as were in the batch it was captured with.
        rows = min(len(query), len(step.block_table))
        step.steps.attention.run(
            step.steps.lists,
            query[:rows],
            keys,
            values,
            step.block_table,
            output[:rows],
            scale=self.scale,
            k_scale=layer._k_scale_float,
            v_scale=layer._v_scale_float,
        )
        return output

    def _rest(self, layer: Any, query: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if self._eight_bits and self._flash.supports_quant_query_input:
            flat, _ = ops.scaled_fp8_quant(query.reshape(len(query), -1), layer._q_scale)
            query = flat.view(query.shape)
        output: torch.Tensor = self._flash.forward(layer, query, *arguments)
        return output

    def _keys_and_values(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """vLLM's KV memory, blocks x heads x tokens x (key and value), as blocks x tokens x heads x dims."""
        # They are not kept: vLLM frees the memory that it tries graphs with, and what is left is KV's.
        halves = kv_cache.transpose(1, 2).chunk(2, dim=-1)
        if self._eight_bits:
            halves = tuple(half.view(current_platform.fp8_dtype()) for half in halves)
        # A dimension of one may have any stride, and boxes of memory are fetched by strides that fit.
        return tuple(map(canonicalize_singleton_dim_strides, halves))
