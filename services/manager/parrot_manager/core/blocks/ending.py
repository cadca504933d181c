"""How blocks end, and what their outputs become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.blocks.names import instance_of
from parrot_manager.core.blocks.skips import is_skipped, skipped_with
from parrot_manager.core.commands import PublishValue
from parrot_manager.core.endings import cancel, digest_of, spread, upstream_failure
from parrot_manager.core.model import Failure, Value, Variable, VariableState
from parrot_manager.core.queueing import advance_consumers
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors
from parrot_runtime.errors import Kind


def finish_block(
    turn: Turn, live: LiveSession, block: Block, values: Mapping[str, bytes], skipped: Mapping[str, Variable]
) -> None:
    """A block is done: outputs have their values, or are skipped with a variable of its last round."""
    _end(turn, live, replace(block, state=BlockState.DONE))
    for variable_id in block.output_ids:
        if variable_id in values:
            _give(turn, live, Value(variable_id, values[variable_id]))
        elif variable_id in skipped:
            why = skipped_with(skipped[variable_id], block.id)
            _lose(turn, live, [variable_id], VariableState.CANCELLED, why)


def fail_block(turn: Turn, live: LiveSession, block: Block, kind: Kind, why: str) -> None:
    """A block fails of itself; `why` says what is wrong, and how to mend it."""
    failure = Failure.of(kind, f"{block.title}: {why}", live.session.id, block.id)
    _end_without(turn, live, block, BlockState.FAILED, failure)


def skip_block(turn: Turn, live: LiveSession, block: Block, failure: Failure) -> None:
    """A block is skipped, and so is what reads its outputs."""
    _end_without(turn, live, block, BlockState.CANCELLED, failure)


def cancel_block(turn: Turn, live: LiveSession, block: Block, why: str) -> None:
    """A block is cancelled, with all its instances and what reads its outputs."""
    failure = Failure.of(errors.CANCELLED, why, live.session.id, block.id)
    _end_without(turn, live, block, BlockState.CANCELLED, failure)


def end_with(turn: Turn, live: LiveSession, block: Block, variable: Variable) -> None:
    """A block ends as a variable that it needs has ended: skipped, cancelled, or failed."""
    if is_skipped(variable):
        skip_block(turn, live, block, skipped_with(variable, block.id))
    elif variable.state is VariableState.CANCELLED:
        cancel_block(turn, live, block, f"{_place(live, block, variable)} was cancelled")
    else:
        why = upstream_failure(variable)
        told = f"{block.title}: {_place(live, block, variable)} failed, because {why.cause_call_id or 'it'} "
        failure = replace(why, call_id=block.id, message=f"{told}failed: {why.cause_type}")
        _end_without(turn, live, block, BlockState.FAILED, failure)


def end_late(turn: Turn, live: LiveSession, block: Block, output: Variable) -> None:
    """A block's outputs were ended over its head, with the whole session: so is the block."""
    cancelled = output.state is VariableState.CANCELLED
    state = BlockState.CANCELLED if cancelled else BlockState.FAILED
    why = output.failure
    failure = replace(why, call_id=block.id, variable_id="") if why is not None else None
    _end(turn, live, replace(block, state=state, failure=failure))


def _place(live: LiveSession, block: Block, variable: Variable) -> str:
    """What of a block a variable is, in words."""
    producer = live.calls.get(variable.producer_call_id)
    if producer is None or producer.block_id != block.id:
        return f"its input {variable.id!r}"
    instance, _ = instance_of(block, producer.number)
    return f"{'round' if block.kind == 'loop' else 'item'} {instance}"


def _end_without(turn: Turn, live: LiveSession, block: Block, state: BlockState, failure: Failure) -> None:
    _end(turn, live, replace(block, state=state, failure=failure))
    for call_id in [name for name in live.unfinished if live.calls[name].block_id == block.id]:
        why = Failure.of(errors.CANCELLED, f"{block.title}, which it is part of, has ended", block.session_id)
        cancel(turn, live, live.calls[call_id], replace(why, call_id=call_id), "its block has ended")
    ended = VariableState.FAILED if state is BlockState.FAILED else VariableState.CANCELLED
    _lose(turn, live, block.output_ids, ended, failure)


def _lose(
    turn: Turn, live: LiveSession, variable_ids: Iterable[str], state: VariableState, failure: Failure
) -> None:
    lost = [
        replace(live.variables[name], state=state, failure=failure.about(name))
        for name in variable_ids
        if name in live.open_variables
    ]
    for variable in lost:
        turn.save_variable(live, variable)
        turn.publish_end(live, variable)
    spread(turn, live, lost)


def _give(turn: Turn, live: LiveSession, value: Value) -> None:
    ready = replace(
        live.variables[value.variable_id],
        state=VariableState.READY,
        size_bytes=len(value.data),
        value_digest=digest_of(value.data),
        ready_ms=turn.now_ms,
        published_ms=turn.now_ms,
    )
    turn.save_variable(live, ready, value)
    turn.do(PublishValue(live.session.id, live.session.tenant, value))
    advance_consumers(turn, live, ready.id)


def _end(turn: Turn, live: LiveSession, block: Block) -> None:
    turn.save_block(live, replace(block, ended_ms=turn.now_ms))
    turn.reconsidered[live.session.id] = None
