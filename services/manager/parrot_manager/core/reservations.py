"""What calls and blocks may come to use, reserved of their tenant's quota before they begin.

A call reserves the tokens of its prompt, as far as they are known (of text, a quarter of its bytes), and
the most each of its outputs may have. A block reserves what all instances it may have would, except that
the rounds of a loop are calls one after another. What was really used is settled when they have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from parrot_manager.core.blocks.definitions import Loop, Map, Plan
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Call, CallState, Variable
from parrot_manager.core.shapes import (
    CHARS_PER_TOKEN,
    UNBOUNDED_TOKENS,
    InputPiece,
    OutputPiece,
    Shape,
    TextPiece,
)
from parrot_manager.core.state import LiveSession
from parrot_manager.core.submissions import NewCall
from parrot_manager.core.tenants import Movement
from parrot_runtime import errors

OURS: Final = frozenset(
    kind.type
    for kind in (
        errors.ENGINE_ERROR,
        errors.ENGINE_LOST,
        errors.INTERRUPTED,
        errors.NO_ENGINE,
        errors.NOT_RESUMABLE,
        errors.UNAVAILABLE,
        errors.VALUE_UNAVAILABLE,
        errors.WRONG_MANAGER,
    )
)
"""The failures nobody pays for. Not all that may be tried again: a deadline is its sender's."""

Tokens = Mapping[str, int]
"""How many tokens variables have at the most, by id, as far as is known."""


def reserved(
    live: LiveSession, calls: Sequence[Call], blocks: Sequence[Block], variables: Sequence[Variable]
) -> tuple[tuple[Call, ...], tuple[Block, ...]]:
    """The calls and blocks of a batch with what each reserves.

    Args:
        variables: those that come with the batch.
    """
    known = {variable.id: _tokens_of(variable.size_bytes) for variable in variables if variable.state.ended}
    known |= dict(_made([call.shape for call in calls]))
    nodes: list[Call | Block] = [*calls, *blocks]
    needed = {name for node in nodes for name in node.needed_ids}
    known |= {name: _tokens_in(live, name) for name in needed if name in live.variables}
    return (
        tuple(replace(call, reserved_tokens=_call_tokens(call, known)) for call in calls),
        tuple(_with_reservation(block, known) for block in blocks),
    )


def taken_by(accepted: CallsAccepted, opened: int = 0) -> Movement:
    """What a batch takes of its tenant's quota, with so many sessions that are opened with it."""
    nodes: list[Call | Block] = [*accepted.calls, *accepted.blocks]
    tokens = sum(node.reserved_tokens for node in nodes)
    stored_bytes = sum(len(node.spec) for node in nodes) + sum(len(value.data) for value in accepted.values)
    return Movement(
        sessions=opened,
        calls=len(accepted.calls) + sum(block.reserved_calls for block in accepted.blocks),
        tokens=tokens,
        spent_tokens=tokens,
        stored_bytes=stored_bytes,
    )


def used_tokens(call: Call) -> int:
    """The tokens a call that has ended is charged with.

    What one used that did not get to its end, nobody knows: it is charged with what it reserved if it had
    begun, unless the system failed it, or what it depends on.
    """
    if call.failure is not None and call.failure.root_type in OURS:
        return 0
    used = call.usage.prompt_tokens + call.usage.output_tokens
    if used or call.state is CallState.DONE or not call.attempt:
        return used
    return call.reserved_tokens


def _with_reservation(block: Block, known: Tokens) -> Block:
    plan = block.plan
    if plan is None:
        return block
    tokens = _body_tokens(plan, known) * plan.instances
    at_once = 1 if isinstance(plan, Loop) else plan.instances
    return replace(block, reserved_calls=len(plan.body) * at_once, reserved_tokens=tokens)


def _body_tokens(plan: Plan, known: Tokens) -> int:
    made = dict(_made([call.shape for call in plan.body]))
    bounds = {**known, **made, **_given(plan, known, made)}
    return sum(_call_tokens(call, bounds) for call in plan.body)


def _given(plan: Plan, known: Tokens, made: Tokens) -> dict[str, int]:
    """What an instance of a body is given under the body's own names."""
    if isinstance(plan, Map):
        # All items together are as long as the list.
        whole = known.get(plan.list_variable_id, UNBOUNDED_TOKENS)
        return {plan.item_variable_id: -(-whole // max(1, plan.max_items)), plan.index_variable_id: 1}
    if isinstance(plan, Loop):
        return {
            carried.body_variable_id: max(
                known.get(carried.initial_variable_id, UNBOUNDED_TOKENS),
                made.get(carried.next_variable_id, UNBOUNDED_TOKENS),
            )
            for carried in plan.carried
        }
    return {}


def _call_tokens(call: Call | NewCall, known: Tokens) -> int:
    """None where code makes the outputs, and no model."""
    return 0 if call.native is not None else sum(_piece_tokens(piece, known) for piece in call.shape)


def _piece_tokens(piece: TextPiece | InputPiece | OutputPiece, known: Tokens) -> int:
    if isinstance(piece, TextPiece):
        return piece.tokens
    if isinstance(piece, InputPiece):
        return known.get(piece.variable_id, UNBOUNDED_TOKENS)
    return piece.max_tokens or UNBOUNDED_TOKENS


def _made(shapes: Sequence[Shape]) -> Iterator[tuple[str, int]]:
    for shape in shapes:
        for piece in shape:
            if isinstance(piece, OutputPiece):
                yield piece.variable_id, piece.max_tokens or UNBOUNDED_TOKENS


def _tokens_in(live: LiveSession, variable_id: str) -> int:
    """How many tokens a variable of the session has, or may come to have."""
    variable = live.variables[variable_id]
    if variable.state.ended:
        return _tokens_of(variable.size_bytes)
    producer = live.calls.get(variable.producer_call_id)
    made = dict(_made([producer.shape])) if producer is not None else {}
    return made.get(variable_id, UNBOUNDED_TOKENS)


def _tokens_of(size_bytes: int) -> int:
    return -(-size_bytes // CHARS_PER_TOKEN)
