"""Plans a step: the forest in the rows' block tables, cut into items of about one cost.

A node is a stretch of KV that the same rows read. It is cut into tiles of rows, as many as a kernel
takes at once, and each tile's KV into chunks. What several items make of one row is merged afterwards;
what a single one makes is the row's output.

Planning is done in C++ (`native/plan.cpp`): it is on the path of every step.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from parrot_kernels.native import library

ITEM_FIELDS: Final = 8
"""shared, row_begin, row_count, table_offset, tokens, partial_base, direct, cost"""
_LISTS: Final = {1: "items", 2: "rows", 3: "partials"}
_NO_MEMORY: Final = 4
_TREE_FAULTS: Final = {
    5: "order names each row once",
    6: "shared counts blocks that are full in both rows",
    7: "rows that share blocks have the same ones",
}

Ints = npt.NDArray[np.int32]


class PlanError(ValueError):
    """A step can't be planned; says why."""


class TreeError(PlanError):
    """The tree that is given is not the rows'; says why."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What work costs, in the time that a token takes to be read for one row and KV head.

    Attributes:
        row: the arithmetic of a token for each further query row.
        item: beginning and ending an item.
        partial: writing a partial result, and reading it again.
    """

    row: float
    item: float
    partial: float


CPU_COSTS: Final = Costs(row=0.25, item=24.0, partial=8.0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is planned for.

    Attributes:
        group: query heads of one KV head.
        tile_rows: query rows of one item at most, those of one KV head's group counted each.
        workers: who take items from the list: threads, or multiprocessors.
    """

    block_tokens: int
    kv_heads: int
    group: int
    tile_rows: int
    workers: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much the lists hold. Their addresses stay, so that one recorded graph serves every plan."""

    rows: int
    items: int
    row_index: int
    partials: int

    @classmethod
    def of(cls, rows: int) -> Capacity:
        """Enough for so many rows: where they are not enough, pieces become larger, and less is shared."""
        return cls(rows, items=32 * rows + 64, row_index=64 * rows + 64, partials=64 * rows + 64)


@dataclass(frozen=True, slots=True)
class Plan:
    """A step's lists. They are the planner's own, and hold until the next step is planned.

    Attributes:
        items: count x `ITEM_FIELDS`, the most expensive first.
        row_index: the items' rows.
        partial_begin, partial_index: of each row, the partial results to merge.
        tables: the block tables that items' `table_offset` is in, of blocks of `block_tokens`.
        partials: how many partial results there are.
        nodes: stretches of KV that were found.
    """

    items: Ints
    row_index: Ints
    partial_begin: Ints
    partial_index: Ints
    tables: Ints
    block_tokens: int
    partials: int
    nodes: int


class _Shape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32) for name in ("block_tokens", "group", "tile_rows", "workers", "kv_heads")
    ]


class _Costs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("row", "item", "partial")]


class _Lists(ctypes.Structure):
    _fields_ = [
        ("items", ctypes.c_void_p),
        ("item_capacity", ctypes.c_int32),
        ("row_index", ctypes.c_void_p),
        ("row_capacity", ctypes.c_int32),
        ("partial_begin", ctypes.c_void_p),
        ("partial_index", ctypes.c_void_p),
        ("partial_capacity", ctypes.c_int32),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("items", "rows", "partials", "nodes")]


class Planner:
    """Plans one step after another over the same batch; not for several threads at once."""

    def __init__(self, shape: Shape, capacity: Capacity, costs: Costs = CPU_COSTS) -> None:
        """Makes the lists.

        Raises:
            PlanError: the shape makes no sense.
        """
        _check(shape)
        self.capacity = capacity
        self.items: Ints = np.zeros((capacity.items, ITEM_FIELDS), np.int32)
        self.row_index: Ints = np.zeros(capacity.row_index, np.int32)
        self.partial_begin: Ints = np.zeros(capacity.rows + 1, np.int32)
        self.partial_index: Ints = np.zeros(capacity.partials, np.int32)
        self._order: Ints = np.arange(capacity.rows, dtype=np.int32)
        self._ordered = 0
        self._shape = _Shape(shape.block_tokens, shape.group, shape.tile_rows, shape.workers, shape.kv_heads)
        self._costs = _Costs(costs.row, costs.item, costs.partial)
        self._lists = _Lists(
            self.items.ctypes.data,
            capacity.items,
            self.row_index.ctypes.data,
            capacity.row_index,
            self.partial_begin.ctypes.data,
            self.partial_index.ctypes.data,
            capacity.partials,
        )
        self._counts = _Counts()
        self._native = library().parrot_plan
        self._fixed = tuple(map(ctypes.byref, (self._shape, self._costs)))
        self._order_at = ctypes.c_void_p(self._order.ctypes.data)
        self._results = tuple(map(ctypes.byref, (self._lists, self._counts)))

    def plan(self, tables: Ints, lengths: Ints) -> Plan:
        """The lists of a step whose rows' KV stands in these blocks.

        Rows have in common what their tables have in common, as far as blocks are full in both.

        Args:
            tables: rows x blocks; an item's blocks are found in it, from its `table_offset` on.
            lengths: of each row, tokens; a row of none has nothing to do.

        Raises:
            PlanError: the arrays are not as they must be, or there are more rows than there is room for.
        """
        rows = self._checked(tables, lengths)
        self._reorder(rows)
        return self._planned(tables, lengths, rows, self._order_at, None)

    def plan_tree(self, tables: Ints, lengths: Ints, order: Ints, shared: Ints) -> Plan:
        """The same, of a forest that is known: of each two neighbours, one block is compared.

        Args:
            order: the rows, those of one node side by side.
            shared: of each in `order`, how many full blocks it has in common with the one before; of the
                first, nothing is asked.

        Raises:
            TreeError: it is not these rows' forest.
            PlanError: as in `plan`.
        """
        rows = self._checked(tables, lengths)
        for given in (order, shared):
            _check_array("order and shared", given, 1)
            if len(given) != rows:
                raise TreeError(f"order and shared have one place a row: {rows}, not {len(given)}")
        at = [ctypes.c_void_p(given.ctypes.data) for given in (order, shared)]
        return self._planned(tables, lengths, rows, *at)

    def _planned(
        self,
        tables: Ints,
        lengths: Ints,
        rows: int,
        order: ctypes.c_void_p,
        shared: ctypes.c_void_p | None,
    ) -> Plan:
        full = self._native(
            ctypes.c_void_p(tables.ctypes.data),
            ctypes.c_int64(tables.strides[0] // tables.itemsize),
            ctypes.c_void_p(lengths.ctypes.data),
            ctypes.c_int32(rows),
            *self._fixed,
            order,
            shared,
            *self._results,
        )
        if full == _NO_MEMORY:
            raise MemoryError
        if full in _TREE_FAULTS:
            raise TreeError(_TREE_FAULTS[full])
        if full:
            raise PlanError(f"the list of {_LISTS[full]} is too small for {rows} rows; give it more capacity")
        counts = self._counts
        return Plan(
            self.items[: counts.items],
            self.row_index[: counts.rows],
            self.partial_begin[: rows + 1],
            self.partial_index[: counts.partials],
            tables,
            self._shape.block_tokens,
            counts.partials,
            counts.nodes,
        )

    def _checked(self, tables: Ints, lengths: Ints) -> int:
        _check_array("tables", tables, 2)
        _check_array("lengths", lengths, 1)
        rows = len(lengths)
        if rows > self.capacity.rows:
            raise PlanError(f"there is room for {self.capacity.rows} rows, and there are {rows}")
        if len(tables) < rows:
            raise PlanError(f"{rows} rows have {len(tables)} block tables")
        most = int(lengths.max(initial=0))
        if most > tables.shape[1] * self._shape.block_tokens:
            raise PlanError(f"a row of {most} tokens does not fit in {tables.shape[1]} blocks")
        return rows

    def _reorder(self, rows: int) -> None:
        """The order of the step before is a good one to begin with, unless there are other rows."""
        if rows != self._ordered:
            self._order[:rows] = np.arange(rows, dtype=np.int32)
            self._ordered = rows


def _check(shape: Shape) -> None:
    for name in Shape.__slots__:
        if getattr(shape, name) < 1:
            raise PlanError(f"{name} is {getattr(shape, name)}; it is 1 at least")
    if shape.tile_rows < shape.group:
        raise PlanError(f"tile_rows is {shape.tile_rows}; one row has {shape.group} query heads")


def _check_array(name: str, array: Ints, dimensions: int) -> None:
    if array.dtype != np.int32 or array.ndim != dimensions or array.strides[-1] != array.itemsize:
        raise PlanError(
            f"{name}: int32 of {dimensions} dimensions, the last one without gaps; "
            f"not {array.dtype} {array.shape}"
        )
