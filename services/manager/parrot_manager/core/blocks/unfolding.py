"""Instances join their session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from parrot_manager.core.blocks.instances import Instance, output_ids
from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.blocks.names import first_instance
from parrot_manager.core.commands import PublishValue
from parrot_manager.core.joining import start
from parrot_manager.core.model import Edge
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn


def unfold(turn: Turn, live: LiveSession, block: Block, instances: Sequence[Instance]) -> None:
    """Adds instances of a block to its session; they are stored together with how far the block is."""
    running = replace(
        block,
        state=BlockState.RUNNING,
        count=block.count + len(instances),
        unfolded_ms=block.unfolded_ms or turn.now_ms,
    )
    turn.save_block(live, running)
    for instance in instances:
        _add(turn, live, instance)
    calls = [call for instance in instances for call in instance.calls]
    made = [name for call in calls for name in call.output_ids]
    consume(live, running, made)
    live.blocks.left[block.id] = len(made)
    turn.reconsidered[live.session.id] = None
    for call in calls:
        start(turn, live, call.id)


def consume(live: LiveSession, block: Block, variable_ids: Iterable[str]) -> None:
    """In the graph, a block reads what its instances make."""
    live.graph.add_inputs(block.id, tuple(Edge(name, name) for name in variable_ids))


def made_by_instances(block: Block) -> list[str]:
    """What the calls of a block's instances make; of a loop, those of all rounds that have begun."""
    first = first_instance(block)
    return [name for place in range(first, first + block.count) for name in output_ids(block, place)]


def _add(turn: Turn, live: LiveSession, instance: Instance) -> None:
    values = {value.variable_id: value for value in instance.values}
    for variable in instance.variables:
        turn.add_variable(live, variable, values.get(variable.id))
    for value in instance.values:
        turn.do(PublishValue(live.session.id, live.session.tenant, value))
    for call in instance.calls:
        turn.add_call(live, call)
