"""Random blocks: maps over lists that calls make, loops, selections; and conditions."""

from __future__ import annotations

from dataclasses import dataclass, field

from parrot_manager.block_requests import parse_block
from parrot_manager.condition_requests import Checks
from parrot_manager.core.blocks.definitions import NewBlock
from parrot_proto.manager.v1 import manager_pb2
from tests.simulation.calls import PlannedCall, plan_call
from tests.simulation.dice import Dice

SEPARATOR = " "
MOST_ITEMS = 80
"""No text of the simulated model has more words."""


@dataclass(slots=True)
class PlannedBlock:
    """A block before it is submitted.

    Attributes:
        sources: of a selection, what it selects from.
        collects: of a map, the body's variable and the text between its values; None: as JSON.
        result: of a loop, the body's variable.
    """

    message: manager_pb2.NewBlock
    outputs: tuple[str, ...]
    body: list[PlannedCall] = field(default_factory=list)
    sources: tuple[str, ...] = ()
    collects: tuple[str, str | None] | None = None
    result: str = ""

    def submission(self) -> NewBlock:
        """As clients submit it."""
        return parse_block(self.message, "blocks[0]", Checks())


def plan_block(dice: Dice, known: list[str], number: int) -> PlannedBlock:
    """A block that reads what is known."""
    made = dice.pick([_map, _map, _loop, _select])(dice, known, number)
    if dice.chance(0.2):
        condition_about(dice, dice.pick(known), made.message.when)
    return made


def condition_about(dice: Dice, variable_id: str, message: manager_pb2.Condition) -> None:
    """Writes a condition that holds about as often as not."""
    message.variable_id = variable_id
    message.contains = dice.pick(["a", "e", "é", "漢"])
    message.negate = dice.chance(0.5)


def _map(dice: Dice, known: list[str], number: int) -> PlannedBlock:
    first = plan_call(dice, f"m{number}a", ("item",), number)
    body = [first]
    if dice.chance(0.4):
        body.append(plan_call(dice, f"m{number}b", (first.outputs[0], dice.pick(known)), number))
    joined_by = dice.pick([None, "; "])
    message = manager_pb2.NewBlock(name=f"map {number}")
    message.map.list_variable_id = dice.pick(known)
    message.map.form.separator = SEPARATOR
    message.map.item_variable_id = "item"
    message.map.max_items = MOST_ITEMS
    collected = message.map.collected.add()
    collected.body_variable_id = body[-1].outputs[0]
    collected.variable_id = f"map-all-{number}"
    if joined_by is not None:
        collected.joined_by = joined_by
    message.map.body.extend(call.message() for call in body)
    return PlannedBlock(message, (collected.variable_id,), body, collects=(body[-1].outputs[0], joined_by))


def _loop(dice: Dice, known: list[str], number: int) -> PlannedBlock:
    step = plan_call(dice, f"l{number}", ("carried", dice.pick(known)), number)
    message = manager_pb2.NewBlock(name=f"loop {number}")
    carried = message.loop.carried.add()
    carried.body_variable_id = "carried"
    carried.initial_variable_id = dice.pick(known)
    carried.next_variable_id = step.outputs[0]
    condition_about(dice, step.outputs[-1], message.loop.until)
    message.loop.max_rounds = dice.between(1, 4)
    result = message.loop.results.add()
    result.body_variable_id = step.outputs[0]
    result.variable_id = f"loop-last-{number}"
    message.loop.body.append(step.message())
    return PlannedBlock(message, (result.variable_id,), [step], result=step.outputs[0])


def _select(dice: Dice, known: list[str], number: int) -> PlannedBlock:
    sources = tuple(dice.some(known, 3)) or (known[0],)
    message = manager_pb2.NewBlock(name=f"select {number}")
    message.select.from_variable_ids.extend(sources)
    message.select.variable_id = f"selected-{number}"
    return PlannedBlock(message, (message.select.variable_id,), sources=sources)
