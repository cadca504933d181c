"""Lets blocks and conditions go on after whatever happened in a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parrot_manager.core.blocks.asking import decide_call, look_at_call
from parrot_manager.core.blocks.definitions import Select
from parrot_manager.core.blocks.ending import end_late, end_with
from parrot_manager.core.blocks.instances import dress
from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.blocks.running import go_on, take_answers
from parrot_manager.core.blocks.skips import has_failed
from parrot_manager.core.blocks.unfolding import consume, made_by_instances
from parrot_manager.core.commands import PublishStored
from parrot_manager.core.events import ValuesRead
from parrot_manager.core.model import Call, Variable, VariableState
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn

ASKS_A_MS: Final = 1_000_000


def advance(turn: Turn) -> None:
    """Tells blocks and calls of the variables that ended, until nothing more follows."""
    while turn.ended or turn.looks:
        if turn.ended:
            live, variable_id = turn.ended.popleft()
            _on_ended(turn, live, live.variables[variable_id])
        else:
            live, owner_id = turn.looks.popleft()
            _look(turn, live, owner_id)


def on_values_read(turn: Turn, event: ValuesRead) -> None:
    """What a call or block wanted to know is known; nobody may want to know it any more."""
    live = turn.state.sessions.get(event.session_id)
    if live is None or not live.blocks.take(event.owner_id, event.ask):
        return
    block = live.blocks.all.get(event.owner_id)
    if block is not None:
        take_answers(turn, live, block, event.answers)
    else:
        decide_call(turn, live, live.calls[event.owner_id], event.answers[0])


def join_blocks(turn: Turn, live: LiveSession, blocks: Iterable[Block]) -> None:
    """Blocks take their place in their session; in a lazy one they wait until they are wanted."""
    for block in blocks:
        live.put_block(block)
        live.graph.add(block.id, block)
        if block.when is not None:
            live.blocks.undecided[block.id] = None
        if live.session.lazy:
            live.blocks.idle[block.id] = None
        turn.look(live, block.id)


def restore_blocks(turn: Turn, live: LiveSession, blocks: Iterable[Block]) -> None:
    """Blocks come back from the store, whose instances are there already."""
    # Answers to what was asked in another life of the session come to nobody.
    live.blocks.asks = turn.now_ms * ASKS_A_MS
    for block in blocks:
        live.put_block(block)
        live.graph.add(block.id, block)
        if block.state is BlockState.RUNNING:
            made = made_by_instances(block)
            consume(live, block, made)
            live.blocks.left[block.id] = sum(name in live.open_variables for name in made)
        elif block.when is not None and not block.state.ended:
            live.blocks.undecided[block.id] = None
        if live.session.lazy and block.state is BlockState.WAITING:
            live.blocks.idle[block.id] = None
        turn.look(live, block.id)
        _tell_outputs(turn, live, block)


def dressed(call: Call, blocks: dict[str, Block]) -> Call:
    """A call as it is when its block is known."""
    block = blocks.get(call.block_id)
    return dress(call, block) if block is not None and not call.state.ended else call


def _tell_outputs(turn: Turn, live: LiveSession, block: Block) -> None:
    """Readers may not have heard of what a block made."""
    for name in block.output_ids:
        if live.variables[name].state is VariableState.READY:
            turn.do(PublishStored(live.session.id, live.session.tenant, live.variables[name]))


def _look(turn: Turn, live: LiveSession, owner_id: str) -> None:
    block = live.blocks.all.get(owner_id)
    if block is None:
        look_at_call(turn, live, live.calls[owner_id])
    elif not block.state.ended:
        _go_on_if_it_can(turn, live, block)


def _go_on_if_it_can(turn: Turn, live: LiveSession, block: Block) -> None:
    """A block that comes to its session may find that an input of it has failed already."""
    needed = () if isinstance(block.plan, Select) else block.needed_ids
    failed = next((name for name in needed if has_failed(live.variables[name])), None)
    if failed is not None:
        end_with(turn, live, block, live.variables[failed])
    else:
        go_on(turn, live, block)


def _on_ended(turn: Turn, live: LiveSession, variable: Variable) -> None:
    if variable.producer_block_id in live.blocks.open and variable.state > VariableState.READY:
        end_late(turn, live, live.blocks.all[variable.producer_block_id], variable)
    for owner_id in live.graph.get_consumers(variable.id):
        if owner_id in live.blocks.open:
            _on_needed(turn, live, live.blocks.all[owner_id], variable)
        elif owner_id in live.blocks.undecided:
            look_at_call(turn, live, live.calls[owner_id])


def _on_needed(turn: Turn, live: LiveSession, block: Block, variable: Variable) -> None:
    """An input of a block ended, or what an instance of it makes."""
    if has_failed(variable) and not isinstance(block.plan, Select):
        end_with(turn, live, block, variable)
        return
    producer = live.calls.get(variable.producer_call_id)
    if producer is not None and producer.block_id == block.id:
        live.blocks.left[block.id] -= 1
    go_on(turn, live, block)
