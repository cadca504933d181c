"""Runs plans on the GPU (`kernels`)."""

from __future__ import annotations

from math import log2
from typing import Final

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from parrot_kernels.gpu import kernels
from parrot_kernels.gpu.geometry import AttentionError, Geometry
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.gpu.variants import OPTIONS, TILE_TOKENS, Variant, boxes_fit

_TO_BASE_2: Final = log2(2.718281828459045)
_PROGRAMS_INTERPRETED: Final = 3
_HOPPER: Final = 9


class GpuAttention:
    """Attention over the KV memory of a model's layers, decode steps and fills.

    `run` allocates nothing, waits for nothing and looks at nothing on the device, and what it starts does not
    depend on the plan: recorded in a graph, it serves every plan that is loaded before a replay.
    """

    def __init__(self, geometry: Geometry, device: torch.device) -> None:
        """Compiles nothing yet: the first `run` does.

        Args:
            device: a GPU; or the CPU, where Triton interprets (TRITON_INTERPRET=1 before it is imported).

        Raises:
            AttentionError: there is no kernel for the device.
        """
        self.geometry, self.device = geometry, device
        self._processors = _processors(geometry, device)

    @property
    def programs(self) -> int:
        """How many take items at once: what `Geometry.shape` plans for."""
        return self._programs(Variant(self.geometry, tma=True, ragged=False))

    def run(  # noqa: PLR0917 - as attention is called everywhere
        self,
        lists: DeviceLists,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        tables: torch.Tensor,
        out: torch.Tensor,
        *,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Writes the attention of every row of the loaded plan that has tokens; others are left as they are.

        Args:
            query: rows x query heads x head size, as many rows as the plan's, or more (a graph's padding).
            key, value: blocks x tokens of a block x KV heads x head size, in any order of memory in which a
                head's dims lie side by side.
            tables: rows x blocks, int32, on the device: those that were planned, with the same stride.
            out: as `query`.
            scale: of the dot products.
            k_scale, v_scale: what keys and values are multiplied by, being float8.

        Raises:
            AttentionError: the tensors don't fit together, or not with the plan.
        """
        self._check(query, key, value, out)
        self._check_plan(lists, len(query), tables)
        variant = Variant(self.geometry, tma=self._boxed(key, value), ragged=lists.ragged)
        results = (lists.partial_out, lists.partial_lse)
        written = (out, out.stride(0), out.stride(1))
        kernels.attend[(self._programs(variant),)](
            (query, query.stride(0), query.stride(1)),
            *(_memory(each, tma=variant.tma) for each in (key, value)),
            written,
            results,
            (scale * k_scale * _TO_BASE_2, float(v_scale)),
            tables,
            lists.numbers,
            **variant.constants(),
            num_warps=variant.warps,
            **OPTIONS,
        )
        if len(query):
            kernels.merge[(len(query), self.geometry.query_heads)](
                written, results, lists.numbers, **variant.merge_constants(), num_warps=1, **OPTIONS
            )

    def _programs(self, variant: Variant) -> int:
        return self._processors * variant.programs_per_processor

    def _boxed(self, key: torch.Tensor, value: torch.Tensor) -> bool:
        return all(boxes_fit(self.geometry, each.stride()[:3], each.data_ptr()) for each in (key, value))

    def _check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor) -> None:
        made = self.geometry
        rows = (len(query), made.query_heads, made.head_size)
        blocks = (len(key), made.block_tokens, made.kv_heads, made.head_size)
        for name, tensor, shape, kind in (
            ("query", query, rows, made.query_type),
            ("out", out, rows, made.query_type),
            ("key", key, blocks, made.kv_type),
            ("value", value, blocks, made.kv_type),
        ):
            if tuple(tensor.shape) != shape or str(tensor.dtype) != f"torch.{kind}" or tensor.stride(-1) != 1:
                raise AttentionError(
                    f"{name}: {kind} {shape}, the last dimension without gaps; not {_said(tensor)}"
                )

    def _check_plan(self, lists: DeviceLists, rows: int, tables: torch.Tensor) -> None:
        if lists.geometry != self.geometry or rows < lists.rows:
            raise AttentionError(
                f"lists of {lists.rows} rows for {lists.geometry}, but {rows} queries for {self.geometry}"
            )
        if tables.dtype != torch.int32 or tables.ndim != 2 or tables.stride(-1) != 1:
            raise AttentionError(f"tables: int32, rows x blocks without gaps; not {_said(tables)}")
        if lists.table_stride is not None and lists.rows > 1 and tables.stride(0) != lists.table_stride:
            raise AttentionError(
                f"a row of the tables is {tables.stride(0)} numbers long; {lists.table_stride} were planned"
            )


def _said(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"


def _memory(tensor: torch.Tensor, *, tma: bool) -> TensorDescriptor | tuple[torch.Tensor, int, int, int]:
    """Keys or values as the kernel takes them: a descriptor; or pointer, strides of block, token and head.

    A descriptor is an argument by itself: Triton's launchers before 3.8 don't find those within tuples.
    """
    if not tma:
        return tensor, tensor.stride(0), tensor.stride(1), tensor.stride(2)
    # What a tile has one of comes first: the compiler then reads a box as the tile it is.
    heads_first = tensor.permute(0, 2, 1, 3)
    box = [1, 1, TILE_TOKENS, tensor.shape[3]]
    return TensorDescriptor(heads_first, list(heads_first.shape), list(heads_first.stride()), box)


def _processors(geometry: Geometry, device: torch.device) -> int:
    if triton.knobs.runtime.interpret:
        return _PROGRAMS_INTERPRETED
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        raise AttentionError(
            f"the kernels are made for Hopper (sm_90), not for {device}; "
            "without one they can be interpreted, with TRITON_INTERPRET=1"
        )
    if geometry.query_type == "float32":
        raise AttentionError("float32 is for the interpreter; on a GPU, queries are float16 or bfloat16")
    return torch.cuda.get_device_properties(device).multi_processor_count
