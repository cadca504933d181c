"""The instances of a block's body: ordinary calls and variables, known from the block alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parrot_manager.core.blocks.definitions import Loop, Map
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.names import (
    call_number,
    call_order,
    instance_of,
    instance_variable,
    suffix_of,
)
from parrot_manager.core.conditions import Condition
from parrot_manager.core.endings import digest_of
from parrot_manager.core.model import Call, Edge, Value, Variable, VariableState
from parrot_manager.core.shapes import InputPiece, OutputPiece, Piece, Shape, own_tokens


@dataclass(frozen=True, slots=True)
class Instance:
    """What one instance adds to the session. `values`: of those of its variables that have one."""

    calls: tuple[Call, ...]
    variables: tuple[Variable, ...]
    values: tuple[Value, ...] = ()


def map_items(block: Block, plan: Map, items: Sequence[bytes], now_ms: int) -> list[Instance]:
    """The instances for the items of a list."""
    body = _Body(block, plan)
    return [_map_item(body, plan, place, item, now_ms) for place, item in enumerate(items)]


def loop_round(block: Block, plan: Loop, number: int, now_ms: int) -> Instance:
    """The instance for a round, which counts from 1. What is carried is named, not copied."""
    calls = _Body(block, plan).calls(number, now_ms)
    return Instance(calls, _outputs(calls))


def dress(call: Call, block: Block) -> Call:
    """An instance's call with what its row lacks, which is the body's."""
    plan = block.plan
    if not isinstance(plan, Map | Loop):
        return call
    instance, place = instance_of(block, call.number)
    body, body_call = _Body(block, plan), plan.body[place]
    names = body.names(instance)
    return replace(
        call,
        spec=body_call.spec,
        shape=_shape(body_call.shape, names),
        when=_condition(body_call.when, names),
        native_timeout_ms=body_call.native_timeout_ms,
    )


def output_ids(block: Block, instance: int) -> list[str]:
    """The variables the calls of an instance make."""
    calls = block.plan.body if block.plan is not None else ()
    return [instance_variable(block, instance, edge.variable_id) for call in calls for edge in call.outputs]


Names = dict[str, str]
"""From the body's own names to the session's; others are the session's already."""


class _Body:
    """A block's body, to be given the names of its instances."""

    def __init__(self, block: Block, plan: Map | Loop) -> None:
        self.block = block
        self._plan = plan
        self._ranks = {place: rank for rank, place in enumerate(plan.order)}
        own = [edge.variable_id for call in plan.body for edge in call.outputs]
        if isinstance(plan, Map):
            own += filter(None, (plan.item_variable_id, plan.index_variable_id))
        self._suffixes = {name: suffix_of(name) for name in own}

    def names(self, instance: int) -> Names:
        """What the body's own names are in an instance."""
        prefix = f"{self.block.id}-{instance}-"
        names = {name: prefix + suffix for name, suffix in self._suffixes.items()}
        if isinstance(self._plan, Loop):
            names |= _carried(self.block, self._plan, instance)
        return names

    def calls(self, instance: int, now_ms: int) -> tuple[Call, ...]:
        """The calls of an instance, in the body's order."""
        names = self.names(instance)
        return tuple(self._call(instance, place, names, now_ms) for place in range(len(self._plan.body)))

    def _call(self, instance: int, place: int, names: Names, now_ms: int) -> Call:
        body_call, number = self._plan.body[place], call_number(self.block, instance, place)
        return Call(
            session_id=self.block.session_id,
            id=f"c-{number}",
            number=number,
            order=call_order(self.block, instance, self._ranks[place]),
            name=body_call.name,
            model=body_call.model,
            inputs=_edges(body_call.inputs, names),
            outputs=_edges(body_call.outputs, names),
            spec=body_call.spec,
            accepted_ms=now_ms,
            shape=_shape(body_call.shape, names),
            when=_condition(body_call.when, names),
            block_id=self.block.id,
            native=body_call.native,
            native_timeout_ms=body_call.native_timeout_ms,
            reserved_tokens=0 if body_call.native is not None else own_tokens(body_call.shape),
        )


def _map_item(body: _Body, plan: Map, place: int, item: bytes, now_ms: int) -> Instance:
    names = body.names(place)
    given = {plan.item_variable_id: item}
    if plan.index_variable_id:
        given[plan.index_variable_id] = str(place).encode()
    values = tuple(Value(names[name], data) for name, data in given.items())
    ready = tuple(
        Variable(
            body.block.session_id,
            names[name],
            name,
            VariableState.READY,
            size_bytes=len(data),
            value_digest=digest_of(data),
            ready_ms=now_ms,
            published_ms=now_ms,
            producer_block_id=body.block.id,
        )
        for name, data in given.items()
    )
    calls = body.calls(place, now_ms)
    return Instance(calls, ready + _outputs(calls), values)


def _carried(block: Block, plan: Loop, number: int) -> Names:
    if number == 1:
        return {carried.body_variable_id: carried.initial_variable_id for carried in plan.carried}
    return {
        carried.body_variable_id: instance_variable(block, number - 1, carried.next_variable_id)
        for carried in plan.carried
    }


def _outputs(calls: tuple[Call, ...]) -> tuple[Variable, ...]:
    return tuple(
        Variable(call.session_id, edge.variable_id, edge.name, producer_call_id=call.id)
        for call in calls
        for edge in call.outputs
    )


def _edges(edges: tuple[Edge, ...], names: Names) -> tuple[Edge, ...]:
    return tuple(Edge(edge.name, names.get(edge.variable_id, edge.variable_id)) for edge in edges)


def _condition(when: Condition | None, names: Names) -> Condition | None:
    if when is None:
        return None
    return replace(when, variable_id=names.get(when.variable_id, when.variable_id))


def _shape(shape: Shape, names: Names) -> Shape:
    return tuple(_piece(piece, names) for piece in shape)


def _piece(piece: Piece, names: Names) -> Piece:
    if isinstance(piece, InputPiece | OutputPiece):
        return replace(piece, variable_id=names.get(piece.variable_id, piece.variable_id))
    return piece
