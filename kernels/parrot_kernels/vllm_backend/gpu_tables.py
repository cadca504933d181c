"""What stands in vLLM's block tables, on the host, where steps are planned.

vLLM keeps a batch's block tables on the device. Its model runner (`vllm.v1.worker.gpu`) has them nowhere
else: what the scheduler sends is written there, request by request, through one method. That method is
observed, and what passes through it is kept in an array of the same shape. The older runner
(`vllm.v1.worker.gpu_model_runner`) fills an array on the host and copies it, so it has only to be found.

Copying from the device instead would wait for the step before, which with asynchronous scheduling is the
one that is running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int32]

_observed: Final[WeakKeyDictionary[Any, list[Ints]]] = WeakKeyDictionary()
"""Of each of the runner's `BlockTables`, what was written: for each KV cache group, requests x blocks."""
_filled: Final[WeakSet[Any]] = WeakSet()
"""The older runner's tables."""


def install() -> None:
    """Has the older runner's tables that are made from now on be found by `HostTables`; may be called again.

    They are made before anybody says which attention is used. Nothing is kept of them, and nothing is kept
    of the other runner's, which are made later, until `observe` is called.
    """
    from vllm.v1.worker.block_table import BlockTable

    if not hasattr(BlockTable.__init__, "__wrapped__"):
        _collect(BlockTable)


def observe() -> None:
    """Has every block table that vLLM makes from now on be found by `HostTables`; may be called again."""
    from vllm.v1.worker.gpu.block_table import BlockTables

    install()
    if not hasattr(BlockTables.append_block_ids, "__wrapped__"):
        _observe(BlockTables)


def _observe(kind: Any) -> None:
    made, appended = kind.__init__, kind.append_block_ids

    @wraps(made)
    def make(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        _observed[self] = [np.zeros(tuple(table.gpu.shape), np.int32) for table in self.block_tables]

    @wraps(appended)
    def append(self: Any, req_index: int, new_block_ids: Sequence[list[int]], overwrite: bool) -> None:
        counts = self.num_blocks.np[:, req_index]
        begins = [0] * len(counts) if overwrite else counts.tolist()
        appended(self, req_index, new_block_ids, overwrite)
        # Tables that were made before anybody observed are not known, and stay so.
        for table, begin, end, blocks in zip(
            _observed.get(self, ()), begins, counts.tolist(), new_block_ids, strict=False
        ):
            # While an engine is warmed up, every block is written as the null block.
            table[req_index, begin:end] = 0 if self.redirect_writes_to_null_block else blocks

    kind.__init__, kind.append_block_ids = make, append


def _collect(kind: Any) -> None:
    made = kind.__init__

    @wraps(made)
    def make(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        _filled.add(self)

    kind.__init__ = make


@dataclass(slots=True)
class HostTables:
    """Finds the rows of one KV cache group's block table; not for several threads at once."""

    block_tokens: int
    _address: int = 0
    _source: Any = None
    _group: int = 0
    _rows: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int32))

    def rows(self, device: torch.Tensor, lengths: Ints, requests: npt.NDArray[Any] | None) -> Ints | None:
        """What the device's table says of the first rows.

        Args:
            device: rows x blocks, as vLLM hands it to the metadata builder.
            lengths: of each row asked for, its tokens.
            requests: of each row, its request's place in the runner's tables; None: the runner doesn't say.

        Returns:
            rows x blocks, rows as far apart as the device's, valid until the next call; as many blocks of
            each row as its tokens are in. None: it isn't known on the host.
        """
        if device.data_ptr() != self._address:
            self._find(device)
        if self._source is None:
            return None
        if not hasattr(self._source, "append_block_ids"):
            return self._filled_rows(lengths)
        if requests is None or len(requests) < len(lengths):
            return None
        return self._observed_rows(device, lengths, requests[: len(lengths)])

    def apart(self, rows: int, width: int) -> Ints:
        """So many rows, so far apart, that have nothing in common; valid until the next call."""
        made = self._scratch(rows, width)
        made[:, 0] = np.arange(rows)
        return made

    def _scratch(self, rows: int, width: int) -> Ints:
        if len(self._rows) < rows or self._rows.shape[1] != width:
            self._rows = np.zeros((rows, width), np.int32)
        return self._rows[:rows]

    def _find(self, device: torch.Tensor) -> None:
        self._address, self._source = device.data_ptr(), None
        for tables in _observed:
            for group, table in enumerate(tables.input_block_tables):
                if table.data_ptr() == self._address:
                    self._source, self._group = tables, group
        for table in _filled:
            if table.block_table.gpu.data_ptr() == self._address:
                self._source = table

    def _filled_rows(self, lengths: Ints) -> Ints | None:
        table = self._source
        rows: Ints = table.block_table.np[: len(lengths)]
        return rows if self._covered(lengths, table.num_blocks_per_row[: len(lengths)]) else None

    def _observed_rows(self, device: torch.Tensor, lengths: Ints, requests: npt.NDArray[Any]) -> Ints | None:
        # Rows of the runner's own trial batches are of no request, or of one with fewer blocks.
        if requests.min(initial=0) < 0 or not self._covered(
            lengths, self._source.num_blocks.np[self._group, requests]
        ):
            return None
        rows = self._scratch(len(lengths), device.stride(0))
        used = -(-int(lengths.max(initial=0)) // self.block_tokens)
        np.take(_observed[self._source][self._group][:, :used], requests, axis=0, out=rows[:, :used])
        return rows

    def _covered(self, lengths: Ints, blocks: npt.NDArray[Any]) -> bool:
        return bool(np.all(blocks.astype(np.int64) * self.block_tokens >= lengths))
