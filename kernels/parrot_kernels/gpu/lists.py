"""A plan's lists on the device, at addresses that stay: one recorded graph serves every plan."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from parrot_kernels.gpu import layout
from parrot_kernels.gpu.geometry import AttentionError, Geometry
from parrot_kernels.plan import Capacity, Plan
from parrot_kernels.plan.planner import Ints

_AHEAD: Final = 4
"""So many plans may be on their way to the device at once."""


class _Staging:
    """Pinned memory from which one plan is copied."""

    def __init__(self, numbers: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.memory = torch.zeros(numbers, dtype=torch.int32, pin_memory=on_gpu)
        self.numbers: Ints = self.memory.numpy()
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until the copy before has been made."""
        if self._copied is not None:
            self._copied.synchronize()

    def copy(self, to: torch.Tensor, used: int) -> None:
        to[:used].copy_(self.memory[:used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class DeviceLists:
    """Buffers for one batch capacity, shared by all layers: the lists, and partial results in float32.

    Attributes:
        numbers: the lists (`layout`), int32.
        partial_out: partial results x query heads x head size.
        partial_lse: partial results x query heads, to base 2.
        rows: of the plan that was loaded last.
        table_stride: of its block tables' rows, in numbers; None before there is one.
    """

    def __init__(
        self, geometry: Geometry, capacity: Capacity, device: torch.device, *, ragged: bool = False
    ) -> None:
        """Allocates everything; nothing is allocated later.

        Args:
            ragged: for fills, whose rows see as many tokens of an item as their limits say.
        """
        self.geometry, self.capacity, self.ragged = geometry, capacity, ragged
        of_rows = (2 if ragged else 1) * capacity.row_index
        numbers = layout.HEADER + capacity.items * layout.ITEM_FIELDS + of_rows
        numbers += capacity.rows + 1 + capacity.partials
        self.numbers = torch.zeros(numbers, dtype=torch.int32, device=device)
        results = (capacity.partials, geometry.query_heads)
        self.partial_out = torch.empty((*results, geometry.head_size), dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(results, dtype=torch.float32, device=device)
        self.rows = 0
        self.table_stride: int | None = None
        self._stagings = [_Staging(numbers, device) for _ in range(_AHEAD)]

    def load(self, plan: Plan, limits: Ints | None = None) -> None:
        """Has the plan's lists copied to the device, on the current stream, without waiting for it.

        The plan may be planned anew as soon as this returns. It is called outside of a graph, before each
        replay. Where four plans are still on their way, it waits for the first.

        Args:
            limits: of each place in the row index, how many of the item's tokens that row sees; for fills.

        Raises:
            AttentionError: the plan is of other blocks, or of more than there is room for; or it has limits,
                and these are no lists for fills, or the other way round.
        """
        self._check(plan, limits)
        staging = self._stagings.pop(0)
        self._stagings.append(staging)
        staging.wait()
        used = _pack(plan, limits, staging.numbers)
        staging.copy(self.numbers, used)
        self.rows = len(plan.partial_begin) - 1
        self.table_stride = plan.tables.strides[0] // plan.tables.itemsize

    def _check(self, plan: Plan, limits: Ints | None) -> None:
        if plan.block_tokens != self.geometry.block_tokens:
            raise AttentionError(
                f"the plan is of blocks of {plan.block_tokens} tokens, not {self.geometry.block_tokens}"
            )
        if (limits is not None) != self.ragged or (limits is not None and len(limits) != len(plan.row_index)):
            raise AttentionError("fills have a limit for each place in the row index, and other plans none")
        has = Capacity(len(plan.partial_begin) - 1, len(plan.items), len(plan.row_index), plan.partials)
        for name in Capacity.__slots__:
            if getattr(has, name) > getattr(self.capacity, name):
                raise AttentionError(
                    f"the plan has {getattr(has, name)} of {name}; there is room for "
                    f"{getattr(self.capacity, name)}: plan with the capacity of these lists"
                )


def _pack(plan: Plan, limits: Ints | None, into: Ints) -> int:
    """One list behind the other, so that one copy of what is used takes them all; how much is used."""
    lists = {
        layout.ROW_INDEX: plan.row_index,
        layout.LIMITS: np.zeros(0, np.int32) if limits is None else limits,
        layout.PARTIAL_BEGIN: plan.partial_begin,
        layout.PARTIAL_INDEX: plan.partial_index,
    }
    into[layout.ITEMS], into[layout.ROWS] = len(plan.items), len(plan.partial_begin) - 1
    at = layout.HEADER + plan.items.size
    into[layout.HEADER : at] = plan.items.reshape(-1)
    for place, numbers in lists.items():
        into[place] = at
        into[at : at + len(numbers)] = numbers
        at += len(numbers)
    return at
