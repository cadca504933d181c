"""A step's decode rows, planned on the host and laid down where the kernel reads them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Plan, Planner
from parrot_kernels.vllm_backend.gpu_tables import HostTables, Ints

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What was done so far.

    Attributes:
        steps: that were planned.
        rows: decode rows in them.
        shared_items: pieces of KV in them that several rows read at once.
        apart: steps of which nothing was known to be shared, because the host has not got their tables.
    """

    steps: int = 0
    rows: int = 0
    shared_items: int = 0
    apart: int = 0


class Steps:
    """Steps of layers whose KV stands in the same blocks.

    Lists and partial results are at addresses that stay, and what a kernel does is in the lists alone: a
    CUDA graph that was captured over any step serves every one that is loaded after it.

    Attributes:
        attention: runs what is loaded.
        lists: what is loaded.
    """

    def __init__(self, geometry: Geometry, rows: int, device: torch.device) -> None:
        """Allocates device memory for steps of so many rows at most."""
        capacity = geometry.capacity(rows)
        self.counts = Counts()
        self.attention = GpuAttention(geometry, device)
        self.lists = DeviceLists(geometry, capacity, device)
        self._planner = Planner(geometry.shape(self.attention.programs), capacity, geometry.costs())
        self._host = HostTables(geometry.block_tokens)

    def load(self, tables: torch.Tensor, lengths: Ints, requests: npt.NDArray[Any] | None) -> Plan:
        """Plans a step and has the plan copied to the device, on the current stream.

        Args:
            tables: int32, rows x blocks, on the device; those of the step first.
            lengths: of each of the step's rows, its tokens: exactly as many as the device will say.
            requests: of each row, its request's place in vLLM's tables; None: vLLM doesn't say.

        Raises:
            PlanError: there are more rows than was said, or longer ones than the tables are wide.
        """
        known = self._host.rows(tables, lengths, requests)
        plan = self._apart_plan(tables, lengths) if known is None else self._planner.plan(known, lengths)
        self.lists.load(plan)
        self.counts.steps += 1
        self.counts.rows += len(lengths)
        self.counts.shared_items += int(plan.items[:, 0].sum())
        return plan

    def _apart_plan(self, tables: torch.Tensor, lengths: Ints) -> Plan:
        """Every row by itself, for which nothing but lengths need be known."""
        if not self.counts.apart:
            log.warning("vLLM's block tables aren't known on the host: prefixes are read once for each row")
        self.counts.apart += 1
        return self._planner.plan(self._host.apart(len(lengths), tables.stride(0)), lengths)
