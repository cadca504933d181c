"""Checks vLLM's block pool against those who say they own its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

FAULTS: Final = 8
"""Faults that are told of at most."""


@dataclass(frozen=True, slots=True)
class PoolAudit:
    """The pool's books, in blocks.

    Attributes:
        total_blocks: without the null block, which belongs to nobody.
        held_blocks: those that no request uses too.
        faults: what does not add up; empty: it does.
    """

    total_blocks: int
    free_blocks: int
    held_blocks: int
    request_blocks: int
    held_contexts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def to_wire(self) -> dict[str, Any]:
        """As a call's answer."""
        return asdict(self)


def audit(pool: Any, owned: Mapping[str, Iterable[Any]], held: Mapping[str, Iterable[Any]]) -> PoolAudit:
    """Checks that each block is free, or owned as often as the pool counts, and never both.

    Args:
        owned: blocks by owner: requests, and frees that have to wait for a step's end.
        held: blocks by context.
    """
    of_requests = _count(owned)
    of_contexts = _count(held)
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    faults = _faults(pool, of_requests + of_contexts, Counter(free))
    if len(free) != pool.get_num_free_blocks():
        faults.append(f"{len(free)} blocks are free, {pool.get_num_free_blocks()} are counted")
    return PoolAudit(
        total_blocks=pool.num_gpu_blocks - 1,
        free_blocks=len(free),
        held_blocks=len(of_contexts.keys() - of_requests.keys()),
        request_blocks=len(of_requests),
        held_contexts=list(held),
        faults=faults[:FAULTS],
    )


def _count(blocks_by_owner: Mapping[str, Iterable[Any]]) -> Counter[int]:
    return Counter(
        block.block_id for blocks in blocks_by_owner.values() for block in blocks if not block.is_null
    )


def _faults(pool: Any, owners: Counter[int], free: Counter[int]) -> list[str]:
    faults = []
    for block in pool.blocks:
        if block.is_null:
            continue
        index = block.block_id
        if block.ref_cnt != owners[index]:
            faults.append(f"block {index} counts {block.ref_cnt} owners and has {owners[index]}")
        if free[index] != (block.ref_cnt == 0):
            faults.append(f"block {index} with {block.ref_cnt} owners is {free[index]} times free")
    return faults
