"""Between blocks and their rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.model import Edge, Failure

Params = dict[str, Any]


def block_row(block: Block) -> Params:
    """A new block's row."""
    return {
        "session_id": block.session_id,
        "number": block.number,
        "spec": block.spec,
        "reserved_calls": block.reserved_calls,
        "reserved_tokens": block.reserved_tokens,
        **block_status(block),
    }


def block_status(block: Block) -> Params:
    """What of a block's row changes. (Most of `data` does not, but it is small.)"""
    return {
        "state": int(block.state),
        "data": {
            "order": block.order,
            "name": block.name,
            "kind": block.kind,
            "inputs": [[edge.name, edge.variable_id] for edge in block.inputs],
            "outputs": [[edge.name, edge.variable_id] for edge in block.outputs],
            "accepted_ms": block.accepted_ms,
            "count": block.count,
            "failure": None if block.failure is None else asdict(block.failure),
            "unfolded_ms": block.unfolded_ms,
        },
        "ended_ms": block.ended_ms,
    }


def to_block(row: Row[Any]) -> Block:
    """The block of a row, without what is derived from its spec."""
    data = row.data
    return Block(
        session_id=row.session_id,
        id=f"b-{row.number}",
        number=row.number,
        order=data["order"],
        name=data["name"],
        kind=data["kind"],
        inputs=tuple(Edge(*pair) for pair in data["inputs"]),
        outputs=tuple(Edge(*pair) for pair in data["outputs"]),
        spec=row.spec,
        accepted_ms=data["accepted_ms"],
        state=BlockState(row.state),
        count=data["count"],
        failure=None if data["failure"] is None else Failure(**data["failure"]),
        unfolded_ms=data["unfolded_ms"],
        ended_ms=row.ended_ms,
        reserved_calls=row.reserved_calls,
        reserved_tokens=row.reserved_tokens,
    )
