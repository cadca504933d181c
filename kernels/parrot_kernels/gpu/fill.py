"""Plans a fill: new tokens of many requests at once, of which many may continue one parent.

A row is a query token. Below its own part a request's tokens see everything, so the tokens of all children of
a parent are packed into the same tiles over the parent's KV. In its own part each token sees what stands
before it: items have a limit for each row. Both are merged by what merges decode steps.

How long it takes matters less than in a decode step, so this is numpy: the loops are over requests and tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from parrot_kernels.gpu.geometry import FILL_ROWS, Geometry
from parrot_kernels.plan import Capacity, Costs, Plan, PlanError
from parrot_kernels.plan.planner import ITEM_FIELDS, Ints

_PIECES: Final = 4
"""Of each program's share: the last ones to end then end at about the same time."""
_WHOLE_TOKENS: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Fill:
    """A fill's lists: a plan, and of each place in its row index how many of the item's tokens are seen."""

    plan: Plan
    limits: Ints


@dataclass(frozen=True, slots=True)
class _Requests:
    """What is filled: block tables, tokens that are there already, new tokens, each request's first row."""

    tables: Ints
    contexts: Ints
    tokens: Ints
    rows: Ints

    @property
    def stride(self) -> int:
        return self.tables.strides[0] // self.tables.itemsize


@dataclass(frozen=True, slots=True)
class _Node:
    """Blocks `begin` to `end` of several requests' tables, the same in all."""

    requests: list[int]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows of one product, and the tokens they read: of each row, so many."""

    shared: bool
    rows: Ints
    table_offset: int
    limits: Ints

    @property
    def tokens(self) -> int:
        return int(self.limits.max())


class FillPlanner:
    """Plans one fill after another, with lists of a fixed capacity."""

    def __init__(
        self, geometry: Geometry, capacity: Capacity, programs: int, costs: Costs | None = None
    ) -> None:
        """`capacity` is that of the lists it is loaded into, `Geometry.fill_capacity` or more."""
        self._geometry, self._capacity, self._programs = geometry, capacity, programs
        self._costs = costs or geometry.costs()
        self._tile = FILL_ROWS // geometry.group

    def plan(self, tables: Ints, contexts: Ints, tokens: Ints) -> Fill:
        """The lists of a fill. Its rows are the first request's new tokens, then the second's, and so on.

        Args:
            tables: int32, requests x blocks, new tokens' blocks among them.
            contexts: of each request, tokens whose KV was there before.
            tokens: of each, how many are new; none is nothing to do.

        Raises:
            PlanError: the arrays don't fit together, or there are more rows than there is room for.
        """
        requests = self._checked(tables, contexts, tokens)
        rows = int(tokens.sum())
        for shares in (True, False):
            tiles = list(self._tiles(requests, shares=shares))
            chunk = self._chunk(tiles)
            while chunk < _WHOLE_TOKENS:
                if self._fits(tiles, chunk):
                    return self._written(requests, tiles, chunk, rows)
                # Of larger pieces there are fewer.
                chunk *= 2
        # A tile of one request, whole, has no partial results; and there are no more tiles than rows.
        return self._written(requests, tiles, _WHOLE_TOKENS, rows)

    def _checked(self, tables: Ints, contexts: Ints, tokens: Ints) -> _Requests:
        if any(each.dtype != np.int32 for each in (tables, contexts, tokens)):
            raise PlanError("tables, contexts and tokens are of int32")
        if tables.ndim != 2 or contexts.shape != tokens.shape or tokens.shape != (len(tables),):
            raise PlanError(
                f"tables {tables.shape}, contexts {contexts.shape}, tokens {tokens.shape}: one a request"
            )
        if len(tables) and (contexts.min() < 0 or tokens.min() < 0 or tables.strides[1] != tables.itemsize):
            raise PlanError("contexts and tokens are 0 at least, and the tables' rows have no gaps")
        room = tables.shape[1] * self._geometry.block_tokens
        if np.any(contexts.astype(np.int64) + tokens > room):
            raise PlanError(f"a request is longer than its {tables.shape[1]} blocks")
        rows = int(tokens.sum())
        if rows > self._capacity.rows:
            raise PlanError(f"there is room for {self._capacity.rows} rows, and there are {rows}")
        return _Requests(tables, contexts, tokens, (np.cumsum(tokens) - tokens).astype(np.int32))

    def _tiles(self, requests: _Requests, *, shares: bool) -> Iterator[_Tile]:
        """What several requests read, then what each reads by itself."""
        own = np.zeros(len(requests.tokens), np.int32)
        for node in self._nodes(requests) if shares else ():
            own[node.requests] = node.end
            rows = np.concatenate([_rows(requests, request) for request in node.requests])
            seen = (node.end - node.begin) * self._geometry.block_tokens
            offset = node.requests[0] * requests.stride + node.begin
            for at in range(0, len(rows), self._tile):
                part = rows[at : at + self._tile]
                yield _Tile(True, part, offset, np.full(len(part), seen, np.int32))
        for request, begin in enumerate(own.tolist()):
            rows = _rows(requests, request)
            seen = requests.contexts[request] - begin * self._geometry.block_tokens
            limits = (seen + 1 + np.arange(len(rows))).astype(np.int32)
            for at in range(0, len(rows), self._tile):
                end = at + self._tile
                yield _Tile(False, rows[at:end], request * requests.stride + begin, limits[at:end])

    def _nodes(self, requests: _Requests) -> Iterator[_Node]:
        """Prefixes that are worth an item of their own, outer ones first."""
        full = requests.contexts // self._geometry.block_tokens
        tables = [requests.tables[at, :blocks] for at, blocks in enumerate(full.tolist())]
        busy = [at for at, tokens in enumerate(requests.tokens.tolist()) if tokens]
        # By bytes: no order of numbers, but one in which what begins alike is side by side.
        order = sorted(busy, key=lambda at: tables[at].tobytes())
        common = [0, *(_common(tables[a], tables[b]) for a, b in pairwise(order))]
        todo = [(0, len(order), 0)]
        while todo:
            first, last, begin = todo.pop()
            if last - first < 2:
                continue
            least = min(common[first + 1 : last])
            members = order[first:last]
            if self._pays(requests.tokens[members], (least - begin) * self._geometry.block_tokens):
                yield _Node(members, begin, least)
                begin = least
            cuts = [first, *(at for at in range(first + 1, last) if common[at] == least), last]
            todo += [(a, b, begin) for a, b in pairwise(cuts)]

    def _pays(self, rows: Ints, tokens: int) -> bool:
        """Tiles that need not be computed, against partial results that would not be there."""
        saved = int((-(-rows // self._tile)).sum()) + (-int(rows.sum()) // self._tile)
        return tokens * saved > self._costs.item + self._costs.partial * int(rows.sum())

    def _chunk(self, tiles: list[_Tile]) -> int:
        """Tokens of an item, at best: whole blocks."""
        block = self._geometry.block_tokens
        work = sum(tile.tokens for tile in tiles) * self._geometry.kv_heads
        least = 4 * (self._costs.item + self._costs.partial * self._tile)
        wanted = max(work / (self._programs * _PIECES), least)
        return max(1, round(wanted / block)) * block

    def _fits(self, tiles: list[_Tile], chunk: int) -> bool:
        pieces = [(-(-tile.tokens // chunk), len(tile.rows)) for tile in tiles]
        places = sum(count * rows for count, rows in pieces)
        # What is written directly has no partial results: this is as many as there can be.
        room = min(self._capacity.row_index, self._capacity.partials)
        return sum(count for count, _ in pieces) <= self._capacity.items and places <= room

    def _written(self, requests: _Requests, tiles: list[_Tile], chunk: int, rows: int) -> Fill:
        pieces = np.zeros(rows, np.int64)
        for tile in tiles:
            pieces[tile.rows] += -(-tile.tokens // chunk)
        items: list[list[int]] = []
        index: list[Ints] = []
        limits: list[Ints] = []
        owners: list[Ints] = []
        begin = partial = 0
        for tile in tiles:
            direct = bool((pieces[tile.rows] == 1).all())
            for at in range(0, tile.tokens, chunk):
                seen = min(chunk, tile.tokens - at)
                offset = tile.table_offset + at // self._geometry.block_tokens
                cost = int(self._costs.item + seen + self._costs.partial * len(tile.rows))
                base = 0 if direct else partial
                items.append([tile.shared, begin, len(tile.rows), offset, seen, base, direct, cost])
                index.append(tile.rows)
                limits.append(np.clip(tile.limits - at, 0, seen))
                begin += len(tile.rows)
                if not direct:
                    owners.append(tile.rows)
                    partial += len(tile.rows)
        items.sort(key=lambda item: -item[7])
        owner = _joined(owners)
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=rows))])
        plan = Plan(
            np.array(items, np.int32).reshape(-1, ITEM_FIELDS),
            _joined(index),
            starts.astype(np.int32),
            np.argsort(owner, kind="stable").astype(np.int32),
            requests.tables,
            self._geometry.block_tokens,
            partial,
            len({tile.table_offset for tile in tiles}),
        )
        return Fill(plan, _joined(limits))


def _rows(requests: _Requests, request: int) -> Ints:
    first = int(requests.rows[request])
    return np.arange(first, first + int(requests.tokens[request]), dtype=np.int32)


def _common(a: Ints, b: Ints) -> int:
    both = min(len(a), len(b))
    different = np.flatnonzero(a[:both] != b[:both])
    return int(different[0]) if len(different) else both


def _joined(lists: list[Ints]) -> Ints:
    joined: Ints = np.concatenate([np.zeros(0, np.int32), *lists])
    return joined
