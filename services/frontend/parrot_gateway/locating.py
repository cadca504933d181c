"""The manager's refusals, told in the words of the request that it never saw: paths and all."""

from __future__ import annotations

import re
from typing import Final

from parrot_gateway.compiling import blocks_of, body_of, calls_of
from parrot_gateway.new_blocks import NewBatch, NewBlock
from parrot_gateway.new_calls import NewCall
from parrot_gateway.wording import reworded
from parrot_runtime import errors
from parrot_runtime.errors import Fault

_OF_HOLES: Final = frozenset({errors.DUPLICATE_PRODUCER, errors.UNPRODUCED_VARIABLE, errors.INVALID_REQUEST})
"""What these are about may be a placeholder, which the manager names by its name."""
_NODE: Final = re.compile(r"(calls|blocks)\[(\d+)\](?:\.(.+))?\Z", re.DOTALL)
_BODY_CALL: Final = re.compile(r"((?:map|loop)\.body)\[(\d+)\](?:\.(.+))?\Z", re.DOTALL)


def locate(fault: Fault, sent: NewBatch | NewCall) -> Fault:
    """The manager's refusal of a batch, its field named as it stands in the request."""
    if fault.kind is errors.VARIABLE_ALREADY_SET and isinstance(sent, NewBatch):
        ids = [value.semantic_var_id for value in sent.variables]
        # Of an id that is sent twice, the later one is too much.
        place = len(ids) - 1 - ids[::-1].index(fault.variable_id) if fault.variable_id in ids else 0
        fault.field = f"variables[{place}].semantic_var_id"
        return fault
    told = fault.field
    fault.field = _located(fault, sent)
    fault.message = reworded(fault.message.replace(told, fault.field) if told else fault.message)
    return fault


def _located(fault: Fault, sent: NewBatch | NewCall) -> str:
    node = _NODE.match(fault.field)
    if node is None:
        return reworded(fault.field)
    place, rest = int(node[2]), node[3] or ""
    if node[1] == "blocks":
        return f"blocks[{place}]{_dotted(_in_block(fault, blocks_of(sent)[place], rest))}"
    found = _in_call(fault, calls_of(sent)[place], rest)
    return f"calls[{place}].{found}" if isinstance(sent, NewBatch) else found


def _in_call(fault: Fault, call: NewCall, rest: str) -> str:
    """Where in a call it is: at its condition, at a placeholder, or where the manager says."""
    asked = call.when
    if rest == "when" and asked is not None and fault.variable_id in {"", asked.semantic_var_id}:
        return "when.semantic_var_id"
    names = [placeholder.name for placeholder in call.placeholders]
    if fault.kind in _OF_HOLES and rest in names:
        return f"placeholders[{names.index(rest)}].semantic_var_id"
    return reworded(rest) or "placeholders"


def _in_block(fault: Fault, block: NewBlock, rest: str) -> str:
    body = _BODY_CALL.match(rest)
    if body is not None:
        place = int(body[2])
        return f"{body[1]}[{place}].{_in_call(fault, body_of(block)[place], body[3] or '')}"
    if rest == "when":
        return "when.semantic_var_id"
    made = _outputs(block)
    if rest and not rest.startswith(f"{block.kind}.") and fault.variable_id in made:
        return made[fault.variable_id]
    return reworded(rest)


def _outputs(block: NewBlock) -> dict[str, str]:
    """The ids of what a block makes, as far as the client chose them, with their places."""
    if block.select is not None:
        return {block.select.semantic_var_id or "": "select.semantic_var_id"}
    found = (
        [(f"map.collected[{place}]", made) for place, made in enumerate(block.map.collected)]
        if block.map is not None
        else [(f"loop.results[{place}]", made) for place, made in enumerate(block.loop.results)]
        if block.loop is not None
        else []
    )
    return {made.semantic_var_id or "": f"{path}.semantic_var_id" for path, made in found}


def _dotted(rest: str) -> str:
    return f".{rest}" if rest else ""
