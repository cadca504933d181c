"""What a block does next, as far as that is known: a map, a loop, a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parrot_manager.core.blocks.asking import ask
from parrot_manager.core.blocks.definitions import Loop, Map, Select
from parrot_manager.core.blocks.ending import end_with, fail_block, finish_block, skip_block
from parrot_manager.core.blocks.instances import loop_round, map_items
from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.blocks.names import instance_variable
from parrot_manager.core.blocks.questions import (
    Answer,
    Collection,
    Copy,
    Holds,
    Items,
    Texts,
    TooMany,
    Unanswerable,
    Verdict,
)
from parrot_manager.core.blocks.skips import is_skipped, skipped_itself
from parrot_manager.core.blocks.unfolding import unfold
from parrot_manager.core.model import Variable, VariableState
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors, limits


def go_on(turn: Turn, live: LiveSession, block: Block) -> None:
    """Does what can be done about an open block that waits for no answer."""
    if block.id in live.blocks.asked or block.id in live.blocks.idle:
        return
    if block.state is BlockState.RUNNING:
        # It fails with any of its inputs, as a call does; so it waits for those its instances didn't need.
        if not live.blocks.left[block.id] and not live.waits(block.needed_ids):
            _instances_ended(turn, live, block)
    elif block.id not in live.blocks.undecided:
        _begin(turn, live, block)
    elif block.when is not None and _is_there(turn, live, block, block.when.variable_id):
        ask(turn, live, block.id, Holds(block.when))


def take_answers(turn: Turn, live: LiveSession, block: Block, answers: Sequence[Answer]) -> None:
    """Goes on with what a block wanted to know."""
    for answer in answers:
        if isinstance(answer, Unanswerable):
            fail_block(turn, live, block, errors.TRANSFORM_FAILED, answer.why)
            return
    first = answers[0]
    if isinstance(first, Verdict) and block.state is BlockState.WAITING:
        _when_decided(turn, live, block, first)
    elif isinstance(first, Verdict):
        _round_decided(turn, live, block, first)
    elif isinstance(first, TooMany):
        fail_block(turn, live, block, errors.TOO_LARGE, f"the list has more than {_most(block)} items")
    elif isinstance(block.plan, Map) and block.state is BlockState.WAITING:
        _unfold_map(turn, live, block, block.plan, [item for a in answers for item in _texts(a)])
    else:
        _finish(turn, live, block, [item for a in answers for item in _texts(a)])


def _begin(turn: Turn, live: LiveSession, block: Block) -> None:
    plan = block.plan
    if isinstance(plan, Loop):
        unfold(turn, live, block, [loop_round(block, plan, 1, turn.now_ms)])
    elif isinstance(plan, Select):
        _select(turn, live, block, plan)
    elif isinstance(plan, Map) and _is_there(turn, live, block, plan.list_variable_id):
        ask(turn, live, block.id, Items(plan.list_variable_id, plan.listing, plan.max_items))


def _is_there(turn: Turn, live: LiveSession, block: Block, variable_id: str) -> bool:
    """Whether a variable has its value; one that never will ends the block."""
    variable = live.variables[variable_id]
    if variable.state > VariableState.READY:
        end_with(turn, live, block, variable)
    return variable.state is VariableState.READY


def _select(turn: Turn, live: LiveSession, block: Block, plan: Select) -> None:
    for variable_id in plan.from_variable_ids:
        variable = live.variables[variable_id]
        if not is_skipped(variable):
            if variable.state.ended and _is_there(turn, live, block, variable_id):
                ask(turn, live, block.id, Copy(variable_id))
            return
    end_with(turn, live, block, live.variables[plan.from_variable_ids[-1]])


def _when_decided(turn: Turn, live: LiveSession, block: Block, verdict: Verdict) -> None:
    live.blocks.drop(block.id)
    if verdict.holds:
        _begin(turn, live, block)
    else:
        skip_block(turn, live, block, skipped_itself(live.session.id, block.id))


def _unfold_map(turn: Turn, live: LiveSession, block: Block, plan: Map, items: list[bytes]) -> None:
    calls = len(items) * len(plan.body)
    full = turn.state.fleet.refuse(live.session.tenant, calls) or live.refuse(calls)
    if full is not None:
        fail_block(turn, live, block, full.kind, f"{len(items)} items: {full.message}")
        return
    unfold(turn, live, block, map_items(block, plan, items, turn.now_ms))
    go_on(turn, live, live.blocks.all[block.id])


def _instances_ended(turn: Turn, live: LiveSession, block: Block) -> None:
    """Every call of the instances is done or was skipped."""
    if isinstance(block.plan, Map):
        _collect(turn, live, block, block.plan)
    elif isinstance(block.plan, Loop):
        until = block.plan.until
        asked = _of_round(live, block, until.variable_id)
        if is_skipped(asked):
            end_with(turn, live, block, asked)
        else:
            ask(turn, live, block.id, Holds(replace(until, variable_id=asked.id)))


def _collect(turn: Turn, live: LiveSession, block: Block, plan: Map) -> None:
    questions: list[Collection] = []
    for collected in plan.collected:
        names = [instance_variable(block, n, collected.body_variable_id) for n in range(block.count)]
        made = [live.variables[name] for name in names if not is_skipped(live.variables[name])]
        if sum(variable.size_bytes for variable in made) > limits.VALUE_BYTES:
            why = f"all {collected.body_variable_id!r} together exceed {limits.VALUE_BYTES:,} bytes"
            fail_block(turn, live, block, errors.TOO_LARGE, why)
            return
        questions.append(Collection(tuple(variable.id for variable in made), collected.joined_by))
    ask(turn, live, block.id, *questions)


def _round_decided(turn: Turn, live: LiveSession, block: Block, verdict: Verdict) -> None:
    plan = block.plan
    if not isinstance(plan, Loop):
        return
    if verdict.holds or (block.count == plan.max_rounds and not plan.must_hold):
        results = [_of_round(live, block, result.body_variable_id) for result in plan.results]
        copies = [Copy(variable.id) for variable in results if not is_skipped(variable)]
        if copies:
            ask(turn, live, block.id, *copies)
        else:
            _finish(turn, live, block, [])
    elif block.count < plan.max_rounds:
        unfold(turn, live, block, [loop_round(block, plan, block.count + 1, turn.now_ms)])
    else:
        why = f"its condition about {plan.until.variable_id!r} held in none of its {block.count} rounds"
        fail_block(turn, live, block, errors.CONDITION_FAILED, why)


def _finish(turn: Turn, live: LiveSession, block: Block, texts: Sequence[bytes]) -> None:
    """The outputs get their values: in their order, without those that were skipped."""
    skipped: dict[str, Variable] = {}
    if isinstance(block.plan, Loop):
        results = {
            result.variable_id: _of_round(live, block, result.body_variable_id)
            for result in block.plan.results
        }
        skipped = {name: variable for name, variable in results.items() if is_skipped(variable)}
    valued = [name for name in block.output_ids if name not in skipped]
    finish_block(turn, live, block, dict(zip(valued, texts, strict=True)), skipped)


def _of_round(live: LiveSession, block: Block, variable_id: str) -> Variable:
    """A body's variable in the last round that has begun."""
    return live.variables[instance_variable(block, block.count, variable_id)]


def _texts(answer: Answer) -> tuple[bytes, ...]:
    return answer.data if isinstance(answer, Texts) else ()


def _most(block: Block) -> int:
    return block.plan.instances if block.plan is not None else 0
