"""Ways to do a decode step's attention on a GPU: ours, and what others have published."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.gpu_batch import BLOCK_TOKENS, HEAD_SIZE, PREFIX_BLOCKS, Batch
from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Plan, Planner
from parrot_kernels.xformers_check import XformersForest

Layer = Callable[[int], None]
"""Does one layer, into the batch's `out`."""
WORKSPACE_BYTES = 256 << 20


class Ours:
    """Our kernel over one batch, with prefixes shared or with every row by itself."""

    def __init__(self, batch: Batch, *, shared: bool) -> None:
        setting = batch.setting
        geometry = Geometry(*setting.heads, HEAD_SIZE, BLOCK_TOKENS, "bfloat16", "bfloat16")
        self._attention = GpuAttention(geometry, batch.device)
        capacity = geometry.capacity(setting.rows)
        self._planner = Planner(geometry.shape(self._attention.programs), capacity, geometry.costs())
        self._lists = DeviceLists(geometry, capacity, batch.device)
        self._batch, self._shared = batch, shared
        self._lists.load(self._plan())

    def _plan(self) -> Plan:
        tables, lengths = self._batch.tables, self._batch.lengths
        if self._shared:
            return self._planner.plan(tables, lengths)
        order = np.arange(len(lengths), dtype=np.int32)
        return self._planner.plan_tree(tables, lengths, order, np.zeros_like(order))

    def plan_us(self, times: int) -> float:
        """A step's plan and its way to the device, on the host; the median."""
        found = []
        for _ in range(times):
            began = time.perf_counter()
            self._lists.load(self._plan())
            found.append((time.perf_counter() - began) * 1e6)
        return float(np.median(found))

    def __call__(self, number: int) -> None:
        batch = self._batch
        self._attention.run(
            self._lists,
            batch.queries[number],
            batch.keys[number],
            batch.values[number],
            batch.device_tables,
            batch.out,
            scale=batch.scale,
        )


def alone(batch: Batch) -> Layer:
    """Our kernel with nothing shared."""
    return Ours(batch, shared=False)


def flash(batch: Batch) -> Layer:
    """vLLM's FlashAttention, as it decodes: nothing is shared."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    starts = torch.arange(batch.setting.rows + 1, dtype=torch.int32, device=batch.device)
    longest, version = int(batch.lengths.max()), get_flash_attn_version()

    def layer(number: int) -> None:
        flash_attn_varlen_func(
            q=batch.queries[number],
            k=batch.keys[number],
            v=batch.values[number],
            out=batch.out,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=batch.device_lengths,
            max_seqlen_k=longest,
            softmax_scale=batch.scale,
            causal=True,
            block_table=batch.device_tables,
            fa_version=version,
        )

    return layer


def xformers(batch: Batch) -> Layer:
    """xFormers' partial attention, a call for each level, and its merge."""
    forest = XformersForest(batch.tables, batch.lengths, BLOCK_TOKENS, batch.device)

    def layer(number: int) -> None:
        forest.attend(batch.queries[number], batch.keys[number], batch.values[number], batch.out, batch.scale)

    return layer


def flashinfer(batch: Batch) -> Layer:
    """FlashInfer's cascade of two levels: prefixes, and what is each row's own."""
    import flashinfer as library

    levels = _cascade(batch)
    wrapper = library.MultiLevelCascadeAttentionWrapper(
        len(levels),
        torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=batch.device),
        "NHD",
        use_cuda_graph=True,
        **{
            f"{name}_buf_arr": [level[name] for level in levels]
            for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        },
    )
    wrapper.plan(
        *([level[name] for level in levels] for name in levels[0]),
        *batch.setting.heads,
        HEAD_SIZE,
        BLOCK_TOKENS,
        sm_scale=batch.scale,
        q_data_type=torch.bfloat16,
    )
    # It wants keys and values in memory of their own.
    memory = [(k.contiguous(), v.contiguous()) for k, v in zip(batch.keys, batch.values, strict=True)]

    def layer(number: int) -> None:
        batch.out.copy_(wrapper.run(batch.queries[number], memory[number]))

    return layer


def _cascade(batch: Batch) -> list[dict[str, torch.Tensor]]:
    """Of each level: where queries begin, where pages begin, the pages, and the tokens of the last one."""
    setting = batch.setting
    group = np.arange(setting.rows) * setting.groups // setting.rows
    first = np.searchsorted(group, np.arange(setting.groups + 1))
    own = batch.tables.shape[1] - PREFIX_BLOCKS
    rest = setting.suffix - (own - 1) * BLOCK_TOKENS
    level = {
        "prefix": (first, PREFIX_BLOCKS, batch.tables[first[:-1], :PREFIX_BLOCKS], BLOCK_TOKENS),
        "own": (np.arange(setting.rows + 1), own, batch.tables[:, PREFIX_BLOCKS:], rest),
    }
    return [
        {
            "qo_indptr": _ints(starts, batch.device),
            "paged_kv_indptr": _ints(np.arange(len(starts)) * pages, batch.device),
            "paged_kv_indices": _ints(indices.reshape(-1), batch.device),
            "paged_kv_last_page_len": _ints(np.full(len(starts) - 1, last), batch.device),
        }
        for starts, pages, indices, last in level.values()
    ]


def _ints(array: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(device)


BASELINES: Mapping[str, Callable[[Batch], Layer]] = {
    "alone": alone,
    "flash": flash,
    "xformers": xformers,
    "flashinfer": flashinfer,
}
"""By the names of their metrics."""
