"""A block as the manager keeps it: an immutable snapshot, like all the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from parrot_manager.core.blocks.definitions import Plan
from parrot_manager.core.conditions import Condition
from parrot_manager.core.model import Edge, Failure


class BlockState(IntEnum):
    """The life of a block; the numbers of `manager.v1.BlockState`."""

    WAITING = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def ended(self) -> bool:
        """Whether it stays as it is."""
        return self >= BlockState.DONE


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a graph that unfolds.

    Attributes:
        number: its place among the session's calls and blocks; the id is `b-<number>`, and the numbers
            behind it are kept for its instances, so that theirs are known before they are there.
        order: its place in topological order; the places behind it are its instances' too.
        kind: map, loop or select.
        inputs: the session's variables it depends on.
        outputs: the session's variables it makes.
        plan: derived from the spec; None when that is not loaded.
        when: what must hold for it to unfold; derived from the spec.
        count: instances of its body: items of a map, rounds of a loop that have begun.
        unfolded_ms: when its first instance came.
        reserved_calls: what it reserved of its tenant's quota, for all its instances; so `reserved_tokens`.
    """

    session_id: str
    id: str
    number: int
    order: int
    name: str
    kind: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    spec: bytes = field(repr=False)
    accepted_ms: int
    state: BlockState = BlockState.WAITING
    count: int = 0
    failure: Failure | None = None
    unfolded_ms: int = 0
    ended_ms: int = 0
    plan: Plan | None = field(default=None, compare=False, repr=False)
    when: Condition | None = field(default=None, compare=False)
    reserved_calls: int = 0
    reserved_tokens: int = 0

    @property
    def last_number(self) -> int:
        """The last of the numbers it keeps."""
        return self.number if self.plan is None else self.number + places_of(self.plan) - 1

    @property
    def output_ids(self) -> tuple[str, ...]:
        """The variables it makes."""
        return tuple(edge.variable_id for edge in self.outputs)

    @property
    def needed_ids(self) -> tuple[str, ...]:
        """The variables it depends on, what its condition is about among them, each once."""
        asked = (self.when.variable_id,) if self.when is not None else ()
        return tuple(dict.fromkeys([*(edge.variable_id for edge in self.inputs), *asked]))

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"{self.kind} {self.id} ({self.name})" if self.name else f"{self.kind} {self.id}"


def places_of(plan: Plan) -> int:
    """How many numbers a block takes: its own, and one for each call its instances may have."""
    return 1 + plan.instances * len(plan.body)
