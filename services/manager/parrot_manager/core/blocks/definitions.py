"""What a block is: as it is submitted, and as it is read back from its spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from parrot_manager.core.conditions import Condition
from parrot_manager.core.model import Edge
from parrot_manager.core.submissions import NewCall


class ListForm(Enum):
    """How a text is a list; the kinds of `manager.v1.ListForm`."""

    JSON_ARRAY = "json_array"
    LINES = "lines"
    SEPARATED = "separator"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list in a text. `separator`: for `SEPARATED` only."""

    form: ListForm
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """An output of each instance of a map, all of them in one variable. `joined_by` None: as JSON."""

    body_variable_id: str
    variable_id: str
    name: str
    joined_by: str | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """What goes from one round of a loop to the next: `next_variable_id` is an output of the body."""

    body_variable_id: str
    initial_variable_id: str
    next_variable_id: str


@dataclass(frozen=True, slots=True)
class Result:
    """An output of the last round of a loop."""

    body_variable_id: str
    variable_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Map:
    """The body once for each item of a list.

    Attributes:
        item_variable_id: the body's name for the item.
        index_variable_id: the body's name for its place, from 0; empty: none.
        order: places of the body's calls in topological order.
        max_items: a longer list fails the block.
    """

    list_variable_id: str
    listing: Listing
    item_variable_id: str
    index_variable_id: str
    body: tuple[NewCall, ...]
    order: tuple[int, ...]
    collected: tuple[Collected, ...]
    max_items: int

    kind = "map"

    @property
    def instances(self) -> int:
        """How often the body may be there."""
        return self.max_items


@dataclass(frozen=True, slots=True)
class Loop:
    """The body again and again, until a condition about one of its outputs holds.

    Attributes:
        order: places of the body's calls in topological order.
        must_hold: rounds that are over while it does not hold fail the block.
    """

    body: tuple[NewCall, ...]
    order: tuple[int, ...]
    carried: tuple[Carried, ...]
    until: Condition
    max_rounds: int
    results: tuple[Result, ...]
    must_hold: bool = False

    kind = "loop"

    @property
    def instances(self) -> int:
        """How often the body may be there."""
        return self.max_rounds


@dataclass(frozen=True, slots=True)
class Select:
    """The first of several variables that was not skipped."""

    from_variable_ids: tuple[str, ...]
    variable_id: str
    name: str

    kind = "select"
    body: tuple[NewCall, ...] = ()

    @property
    def instances(self) -> int:
        """How often the body may be there."""
        return 0


Plan = Map | Loop | Select


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block as it is submitted.

    Attributes:
        inputs: the session's variables it depends on, those its body reads among them.
        outputs: the session's variables it makes.
        spec: a `manager.v1.NewBlock`, opaque here.
        path: where it stands in its request.
    """

    name: str
    plan: Plan
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    spec: bytes = field(repr=False)
    when: Condition | None = None
    path: str = ""
