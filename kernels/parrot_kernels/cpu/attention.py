"""Runs plans on the CPU (`native/attention_unit.hpp`)."""

from __future__ import annotations

import ctypes
import os
import re
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt

from parrot_kernels.native import library
from parrot_kernels.plan import Plan

if TYPE_CHECKING:
    import torch

_Number = TypeVar("_Number", np.float32, np.uint8)
_LINE_BYTES: Final = 64
_ROW_COUNT: Final = 2
"""Of an item, where it says how many rows it has."""
_TYPES: Final = {"torch.float32": 0, "torch.bfloat16": 1, "torch.float16": 2}
_OPENMP: Final = re.compile(r"\S*/lib(?:gomp|iomp5|omp)[-.\w]*\.so[.\d]*")


class AttentionError(ValueError):
    """Tensors that can't be worked on; says why."""


class Layout(IntEnum):
    """How a block of the KV memory is laid out for each head, of B tokens and D dims.

    ROWS: keys [D][B], values [B][D]. PAIRS: keys [B/16][D/2][16][2], values [D/16][B/2][16][2], the last
    numbers being pairs of dims, and of tokens. They are vLLM's layouts `vec` and `amx`.
    """

    ROWS = 0
    PAIRS = 1


class Processor(IntEnum):
    """What a kernel is made for."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3


class _Problem(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.c_void_p),
        ("q_row", ctypes.c_int64),
        ("q_head", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("kv_block", ctypes.c_int64),
        ("kv_head", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("out_row", ctypes.c_int64),
        ("out_head", ctypes.c_int64),
        ("partial_out", ctypes.c_void_p),
        ("partial_lse", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        ("row_index", ctypes.c_void_p),
        ("partial_begin", ctypes.c_void_p),
        ("partial_index", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        *(
            (name, ctypes.c_int32)
            for name in ("item_count", "rows", "block_tokens", "kv_heads", "group", "head_size")
        ),
        ("scale", ctypes.c_float),
        ("type", ctypes.c_int32),
        ("layout", ctypes.c_int32),
    ]


class CpuAttention:
    """Attention of decode steps over one KV memory's layers; not for several threads at once."""

    def __init__(
        self,
        *,
        block_tokens: int,
        layout: Layout,
        scale: float,
        threads: int,
        processor: Processor | None = None,
    ) -> None:
        """Builds or loads the library.

        Args:
            scale: of the dot products; above 0.
            threads: how many work at once.
            processor: whose kernels to use; by default the best there are.

        Raises:
            BuildError: the native library can't be had.
            AttentionError: blocks are no multiples of 32 tokens.
        """
        if block_tokens % 32 or scale <= 0 or threads < 1:
            raise AttentionError(
                f"blocks of {block_tokens} tokens, scale {scale:g}, {threads} threads: blocks are multiples "
                "of 32 tokens, the scale is above 0, and there is a thread at least"
            )
        self._native = library()
        self._native.parrot_scratch_bytes.restype = ctypes.c_int64
        _use_threads_in_process(self._native)
        self._processor = int(best_processor() if processor is None else processor)
        self._threads = threads
        self._problem = _Problem(block_tokens=block_tokens, scale=scale, layout=layout)
        self._problem_at = ctypes.byref(self._problem)
        self._plan: Plan | None = None
        self._fitting: tuple[object, ...] = ()
        self._partial_out = np.zeros(0, np.float32)
        self._partial_lse = np.zeros(0, np.float32)
        self._scratch = np.zeros(0, np.uint8)

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan, out: torch.Tensor
    ) -> None:
        """Writes the attention of every row that has tokens; other rows are left as they are.

        Args:
            q: rows x query heads x head size.
            keys, values: blocks x KV heads x the block's numbers in the layout, of one type with `q`.
            plan: of these rows.
            out: as `q`.

        Raises:
            AttentionError: the tensors don't fit together.
        """
        # A step's layers are alike, and have one plan: what is true of the first is so of the others.
        tensors = (q, keys, values, out)
        fitting = (*((each.dtype, each.shape, each.stride()) for each in tensors),)
        if plan is not self._plan or fitting != self._fitting:
            self._plan = None
            self._check(q, keys, values, out, plan)
            self._prepare(q, keys, out, plan)
            self._plan, self._fitting = plan, fitting
        problem = self._problem
        problem.q, problem.keys, problem.values, problem.out = (each.data_ptr() for each in tensors)
        self._native.parrot_attend(self._problem_at, self._processor, self._threads)

    def _prepare(self, q: torch.Tensor, keys: torch.Tensor, out: torch.Tensor, plan: Plan) -> None:
        """All that a step's layers have in common."""
        problem, heads, size = self._problem, q.shape[1], q.shape[2]
        problem.q_row, problem.q_head = q.stride()[:2]
        problem.kv_block, problem.kv_head = keys.stride()[:2]
        problem.out_row, problem.out_head = out.stride()[:2]
        problem.tables, problem.items, problem.row_index, problem.partial_begin, problem.partial_index = (
            each.ctypes.data
            for each in (plan.tables, plan.items, plan.row_index, plan.partial_begin, plan.partial_index)
        )
        problem.item_count, problem.rows = len(plan.items), len(plan.partial_begin) - 1
        problem.kv_heads, problem.group, problem.head_size = keys.shape[1], heads // keys.shape[1], size
        problem.type = _TYPES[str(q.dtype)]
        self._partial_out = _grown(self._partial_out, plan.partials * heads * size)
        self._partial_lse = _grown(self._partial_lse, plan.partials * heads)
        problem.partial_out, problem.partial_lse = (
            self._partial_out.ctypes.data,
            self._partial_lse.ctypes.data,
        )
        self._prepare_scratch(int(plan.items[:, _ROW_COUNT].max(initial=1)))

    def _prepare_scratch(self, rows: int) -> None:
        problem = self._problem
        problem.scratch_bytes = self._native.parrot_scratch_bytes(
            problem.type, problem.layout, self._processor, rows * problem.group, problem.head_size
        )
        self._scratch = _grown(self._scratch, problem.scratch_bytes * self._threads + _LINE_BYTES)
        problem.scratch = -(-self._scratch.ctypes.data // _LINE_BYTES) * _LINE_BYTES

    def _check(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, plan: Plan
    ) -> None:
        rows = len(plan.partial_begin) - 1
        if plan.block_tokens != self._problem.block_tokens:
            raise AttentionError(f"the plan is of blocks of {plan.block_tokens} tokens")
        if str(q.dtype) not in _TYPES or any(each.dtype != q.dtype for each in (keys, values, out)):
            raise AttentionError(
                f"queries, KV and output are of one type, and of {', '.join(_TYPES)}; not {q.dtype}"
            )
        size = q.shape[2]
        if size % 32 or q.shape[1] % keys.shape[1] or q.shape != out.shape or len(q) < rows:
            raise AttentionError(
                f"queries {tuple(q.shape)}, out {tuple(out.shape)}, {rows} rows, {keys.shape[1]} KV heads: "
                "heads are multiples of 32 dims, and of the KV heads, and each row has a query"
            )
        numbers = self._problem.block_tokens * size
        alike = (keys.shape[:2], keys.stride()[:2], numbers)
        if any(
            (each.shape[:2], each.stride()[:2], each.shape[2:].numel()) != alike for each in (keys, values)
        ):
            raise AttentionError(f"keys and values are blocks x heads x {numbers} numbers, laid out alike")
        if any(each.stride(-1) != 1 for each in (q, out, keys, values)):
            raise AttentionError("the last dimension has no gaps")


def _grown(array: npt.NDArray[_Number], numbers: int) -> npt.NDArray[_Number]:
    return array if len(array) >= numbers else np.empty(numbers, array.dtype)


def best_processor() -> Processor:
    """Whose kernels this machine can run."""
    return Processor(library().parrot_best_processor())


def _use_threads_in_process(native: ctypes.CDLL) -> None:
    """Has the kernels run on the threads of the OpenMP library that is loaded, if one is."""
    maps = Path("/proc/self/maps")
    for path in sorted(set(_OPENMP.findall(maps.read_text()))) if maps.exists() else ():
        try:
            # One that is there, and no second one.
            parallel = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD).GOMP_parallel
        except (OSError, AttributeError):
            continue
        native.parrot_use_threads_of(ctypes.cast(parallel, ctypes.c_void_p))
        return
