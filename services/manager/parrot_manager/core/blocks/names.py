"""The ids of what a block adds to its session: known from the block alone, and free to nobody else.

A variable of the body that is `summary` there is `b-7-12-summary` in instance 12 of block b-7.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from parrot_manager.core.blocks.model import Block
from parrot_runtime.ids import ID_CHARS

_RESERVED: Final = re.compile(r"b-[0-9]+-")
_SUFFIX_CHARS: Final = ID_CHARS - len("b-2147483647-1000-")
_DIGEST_CHARS: Final = 16


def is_reserved(variable_id: str) -> bool:
    """Whether an id has the form of those that blocks give."""
    return _RESERVED.match(variable_id) is not None


def instance_variable(block: Block, instance: int, variable_id: str) -> str:
    """The id of a body's variable in one instance."""
    return f"{block.id}-{instance}-{suffix_of(variable_id)}"


def suffix_of(variable_id: str) -> str:
    """The variable's own part of its instances' ids: its id, or where that is long, a digest's help."""
    if len(variable_id) <= _SUFFIX_CHARS:
        return variable_id
    digest = hashlib.sha256(variable_id.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{variable_id[: _SUFFIX_CHARS - _DIGEST_CHARS - 1]}-{digest}"


def call_number(block: Block, instance: int, place: int) -> int:
    """The number of the body's call at `place` in an instance; rounds count from 1, items from 0."""
    return block.number + 1 + _before(block, instance) + place


def call_order(block: Block, instance: int, rank: int) -> int:
    """The topological place of the body's call of a rank in an instance."""
    return block.order + 1 + _before(block, instance) + rank


def instance_of(block: Block, number: int) -> tuple[int, int]:
    """Which instance of the block, and which place in its body, a call's number stands for."""
    instance, place = divmod(number - block.number - 1, _width(block))
    return instance + first_instance(block), place


def first_instance(block: Block) -> int:
    """The number of the first instance: items are counted from 0, rounds from 1."""
    return 1 if block.kind == "loop" else 0


def _before(block: Block, instance: int) -> int:
    return (instance - first_instance(block)) * _width(block)


def _width(block: Block) -> int:
    return len(block.plan.body) if block.plan is not None else 0
