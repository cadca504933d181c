"""The numbers and topological places of what joins a session."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.blocks.model import Block, places_of
from parrot_manager.core.model import Call
from parrot_manager.core.state import LiveSession
from parrot_manager.core.submissions import NewCall
from parrot_runtime import errors
from parrot_runtime.errors import Fault

LAST_NUMBER: Final = (1 << 31) - 1


def number(
    live: LiveSession, calls: Sequence[NewCall], blocks: Sequence[NewBlock], order: Sequence[int], now_ms: int
) -> tuple[tuple[Call, ...], tuple[Block, ...]]:
    """The calls and blocks of a batch in their session.

    Args:
        order: places in `calls` and, behind them, `blocks`, in topological order.

    Raises:
        Fault: `too_large`, when the session has no more numbers.
    """
    widths = [1] * len(calls) + [places_of(block.plan) for block in blocks]
    first = live.next_number
    if first + sum(widths) > LAST_NUMBER:
        raise Fault(errors.TOO_LARGE, "the session holds too many calls and blocks; open another one")
    numbers = [first, *(first + taken for taken in accumulate(widths))]
    starts = accumulate((widths[place] for place in order), initial=first)
    orders = dict(zip(order, starts, strict=False))
    session_id = live.session.id
    return (
        tuple(
            _call(session_id, call, numbers[place], orders[place], now_ms) for place, call in enumerate(calls)
        ),
        tuple(
            _block(session_id, block, numbers[place], orders[place], now_ms)
            for place, block in enumerate(blocks, len(calls))
        ),
    )


def _call(session_id: str, call: NewCall, number: int, order: int, now_ms: int) -> Call:
    return Call(
        session_id=session_id,
        id=f"c-{number}",
        number=number,
        order=order,
        name=call.name,
        model=call.model,
        inputs=call.inputs,
        outputs=call.outputs,
        spec=call.spec,
        accepted_ms=now_ms,
        shape=call.shape,
        when=call.when,
        native=call.native,
        native_timeout_ms=call.native_timeout_ms,
    )


def _block(session_id: str, block: NewBlock, number: int, order: int, now_ms: int) -> Block:
    return Block(
        session_id=session_id,
        id=f"b-{number}",
        number=number,
        order=order,
        name=block.name,
        kind=block.plan.kind,
        inputs=block.inputs,
        outputs=block.outputs,
        spec=block.spec,
        accepted_ms=now_ms,
        plan=block.plan,
        when=block.when,
    )
