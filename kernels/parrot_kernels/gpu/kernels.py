"""The Triton kernels: what an item makes of its rows, and the merge of partial results.

A plan's lists are one int32 buffer (`layout.py`): a header that says how many items and rows there are and
where each list begins, the items, then the other lists. The device reads it; no grid depends on it.

The running softmax is FlashAttention's (Dao et al. 2022, algorithm 1), its exponents to base 2, its sums in
float32. Scores are scaled after the product, so that queries are not rounded once more.

Tensors travel with their strides: `query` and `out` are (pointer, of a row, of a head); `key` and `value`
a descriptor, or (pointer, of a block, of a token, of a head); `partials` (sums, log-sum-exp); `scales` (of
scores to base 2, of values).
"""

# The compiler's own language: names of constants are capitals, tensors travel by position, values have no
# type that is known here, and branches on constants are no expressions.
# ruff: noqa: N803, PLR0917, SIM108
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from parrot_kernels.gpu import layout

_HEADER = tl.constexpr(layout.HEADER)
_FIELDS = tl.constexpr(layout.ITEM_FIELDS)
_ITEMS = tl.constexpr(layout.ITEMS)
_ROWS = tl.constexpr(layout.ROWS)
_ROW_INDEX = tl.constexpr(layout.ROW_INDEX)
_LIMITS = tl.constexpr(layout.LIMITS)
_PARTIAL_BEGIN = tl.constexpr(layout.PARTIAL_BEGIN)
_PARTIAL_INDEX = tl.constexpr(layout.PARTIAL_INDEX)


@triton.jit
def _gathered(memory, table, at, tokens, head, TILE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
              LAST: tl.constexpr):  # fmt: skip
    """Keys or values of `TILE` tokens from `at` on, by their addresses; zeros behind the last token."""
    pointer, block_stride, token_stride, head_stride = memory
    places = at + tl.arange(0, TILE)
    inside = places < tokens
    if LAST:
        blocks = tl.load(table + places // BLOCK, mask=inside, other=0)
    else:
        blocks = tl.load(table + places // BLOCK)
    # A memory has more numbers than 32 bits count.
    begins = blocks.to(tl.int64) * block_stride + (places % BLOCK) * token_stride
    addresses = pointer + head * head_stride + begins[:, None] + tl.arange(0, SIZE)[None, :]
    if LAST:
        read = tl.load(addresses, mask=inside[:, None], other=0.0)
    else:
        read = tl.load(addresses)
    return read


@triton.jit
def _boxed(box, table, at, head, TILE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The same by TMA: a tile is in one block, and what stands behind the last token comes along."""
    block = tl.load(table + at // BLOCK)
    return box.load([block, head, at % BLOCK, 0]).reshape(TILE, SIZE)


@triton.jit
def _tile(key, value, table, at, tokens, head, TILE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
          TMA: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """Keys and values of a tile. Values behind the last token are zeros: no number times nothing is none."""
    if TMA:
        k = _boxed(key, table, at, head, TILE, SIZE, BLOCK)
        v = _boxed(value, table, at, head, TILE, SIZE, BLOCK)
        if LAST:
            v = tl.where((at + tl.arange(0, TILE) < tokens)[:, None], v, 0.0)
    else:
        k = _gathered(key, table, at, tokens, head, TILE, SIZE, BLOCK, LAST)
        v = _gathered(value, table, at, tokens, head, TILE, SIZE, BLOCK, LAST)
    return k, v


@triton.jit
def _scores(q, k, scales):
    return tl.dot(q, k.to(q.dtype).T, input_precision="ieee") * scales[0]


@triton.jit
def _weighted(weights, v, q):
    return tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")


@triton.jit
def _fold(q, k, v, scores, top, weight, total, RAGGED: tl.constexpr):
    """Takes a tile into the running softmax: largest score, sum of weights, sum of weighted values."""
    raised = tl.maximum(top, tl.max(scores, 1))
    shift = raised
    if RAGGED:
        # A row may have seen nothing yet: minus infinity less minus infinity is no number.
        shift = tl.where(raised == float("-inf"), 0.0, raised)
    decay = tl.exp2(top - shift)
    weights = tl.exp2(scores - shift[:, None])
    weight = weight * decay + tl.sum(weights, 1)
    total = tl.dot(weights.to(q.dtype), v.to(q.dtype), total * decay[:, None], input_precision="ieee")
    return raised, weight, total


@triton.jit
def _write(out, partials, lists, item, head, top, weight, total, HEADS: tl.constexpr, GROUP: tl.constexpr,
           SIZE: tl.constexpr, TILE_ROWS: tl.constexpr):  # fmt: skip
    """The rows' output, or their partial results."""
    places = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, SIZE)
    member = places // GROUP
    heads = head * GROUP + places % GROUP
    inside = member < tl.load(item + 2)
    if tl.load(item + 6) != 0:
        rows = tl.load(lists + tl.load(lists + _ROW_INDEX) + tl.load(item + 1) + member, mask=inside, other=0)
        at = rows.to(tl.int64)[:, None] * out[1] + heads[:, None] * out[2] + dims[None, :]
        tl.store(out[0] + at, total.to(out[0].dtype.element_ty), mask=inside[:, None])
    else:
        results = (tl.load(item + 5) + member).to(tl.int64) * HEADS + heads
        tl.store(partials[0] + results[:, None] * SIZE + dims[None, :], total, mask=inside[:, None])
        tl.store(partials[1] + results, top + tl.log2(weight), mask=inside)


@triton.jit
def _item(query, key, value, out, partials, scales, tables, lists, item, head,
          HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
          TILE_ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
          RAGGED: tl.constexpr):  # fmt: skip
    """One item for one KV head: its rows' queries against its tokens."""
    row_begin = tl.load(item + 1)
    table = tables + tl.load(item + 3)
    tokens = tl.load(item + 4)
    places = tl.arange(0, TILE_ROWS)
    member = places // GROUP
    inside = member < tl.load(item + 2)
    rows = tl.load(lists + tl.load(lists + _ROW_INDEX) + row_begin + member, mask=inside, other=0)
    at_query = rows.to(tl.int64)[:, None] * query[1] + (head * GROUP + places % GROUP)[:, None] * query[2]
    q = tl.load(query[0] + at_query + tl.arange(0, SIZE)[None, :], mask=inside[:, None], other=0.0)
    if RAGGED:
        at_limit = tl.load(lists + _LIMITS) + row_begin + member
        limits = tl.load(lists + at_limit, mask=inside, other=tokens)
        whole = tl.min(limits, 0) // TILE
    else:
        whole = tokens // TILE
    top = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([TILE_ROWS], tl.float32)
    total = tl.zeros([TILE_ROWS, SIZE], tl.float32)
    # What needs a mask comes first: then there are no sums yet to be kept in registers beside it.
    for number in tl.range(whole, tl.cdiv(tokens, TILE), num_stages=1):
        at = number * TILE
        k, v = _tile(key, value, table, at, tokens, head, TILE, SIZE, BLOCK, TMA, True)
        seen = at + tl.arange(0, TILE)
        scores = _scores(q, k, scales)
        if RAGGED:
            scores = tl.where(seen[None, :] < limits[:, None], scores, float("-inf"))
            top, weight, total = _fold(q, k, v, scores, top, weight, total, True)
        else:
            scores = tl.where(seen[None, :] < tokens, scores, float("-inf"))
            top = tl.max(scores, 1)
            weights = tl.exp2(scores - top[:, None])
            weight = tl.sum(weights, 1)
            total = _weighted(weights, v, q)
    for number in tl.range(0, whole, num_stages=STAGES):
        k, v = _tile(key, value, table, number * TILE, tokens, head, TILE, SIZE, BLOCK, TMA, False)
        top, weight, total = _fold(q, k, v, _scores(q, k, scales), top, weight, total, RAGGED)
    if RAGGED:
        weight = tl.where(weight == 0.0, 1.0, weight)
    total = total * (scales[1] / weight)[:, None]
    _write(out, partials, lists, item, head, top, weight, total, HEADS, GROUP, SIZE, TILE_ROWS)


@triton.jit
def attend(query, key, value, out, partials, scales, tables, lists,
           KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
           FEW: tl.constexpr, MANY: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
           TMA: tl.constexpr, RAGGED: tl.constexpr):  # fmt: skip
    """Every item for every KV head, the most expensive first, by as many programs as run at once.

    Neighbours read the same tokens for different heads, which lie side by side in the memory.
    """
    work = tl.load(lists + _ITEMS) * KV_HEADS
    # With invariants moved out of the loop, places and masks would take registers from item to item.
    for number in tl.range(tl.program_id(0), work, tl.num_programs(0), disable_licm=True):
        item = lists + _HEADER + (number // KV_HEADS) * _FIELDS
        head = number % KV_HEADS
        if GROUP <= FEW and tl.load(item + 2) * GROUP <= FEW:
            _item(query, key, value, out, partials, scales, tables, lists, item, head,
                  KV_HEADS * GROUP, GROUP, SIZE, BLOCK, FEW, TILE, STAGES, TMA, RAGGED)  # fmt: skip
        else:
            _item(query, key, value, out, partials, scales, tables, lists, item, head,
                  KV_HEADS * GROUP, GROUP, SIZE, BLOCK, MANY, TILE, STAGES, TMA, RAGGED)  # fmt: skip


@triton.jit
def merge(out, partials, lists, SIZE: tl.constexpr, RESULTS: tl.constexpr):
    """One row's partial results of one query head, weighted by their sums of exponents.

    The grid is rows x query heads; a row that was written directly, or that is padding, has none.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    if row < tl.load(lists + _ROWS):
        at_begin = lists + tl.load(lists + _PARTIAL_BEGIN) + row
        begin = tl.load(at_begin)
        end = tl.load(at_begin + 1)
        index = lists + tl.load(lists + _PARTIAL_INDEX)
        if end > begin:
            dims = tl.arange(0, SIZE)
            top = tl.full([], float("-inf"), tl.float32)
            weight = tl.zeros([], tl.float32)
            total = tl.zeros([SIZE], tl.float32)
            for at in tl.range(begin, end, RESULTS):
                places = at + tl.arange(0, RESULTS)
                inside = places < end
                results = tl.load(index + places, mask=inside, other=0).to(tl.int64) * heads + head
                sizes = tl.load(partials[1] + results, mask=inside, other=float("-inf"))
                sums = tl.load(partials[0] + results[:, None] * SIZE + dims[None, :],
                               mask=inside[:, None], other=0.0)  # fmt: skip
                raised = tl.maximum(top, tl.max(sizes, 0))
                # Parts in which a row sees nothing weigh nothing, whichever comes first.
                shift = tl.where(raised == float("-inf"), 0.0, raised)
                decay = tl.exp2(top - shift)
                weights = tl.exp2(sizes - shift)
                weight = weight * decay + tl.sum(weights, 0)
                total = total * decay + tl.sum(sums * weights[:, None], 0)
                top = raised
            at_out = row.to(tl.int64) * out[1] + head * out[2] + dims
            tl.store(out[0] + at_out, (total / weight).to(out[0].dtype.element_ty))
