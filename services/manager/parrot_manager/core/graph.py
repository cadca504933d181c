"""The graph of a session: calls are nodes, variables are edges from one producer to many consumers."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from parrot_manager.core.model import Edge
from parrot_runtime import errors
from parrot_runtime.errors import Fault

NAMED_IN_ERROR = 8


class Node(Protocol):
    """A call, as far as the graph is concerned."""

    @property
    def name(self) -> str:
        """The function's name."""

    @property
    def inputs(self) -> tuple[Edge, ...]:
        """Placeholders that read a variable."""

    @property
    def outputs(self) -> tuple[Edge, ...]:
        """Placeholders that write one."""


class Graph:
    """Who produces and who consumes each variable of a session, by call id."""

    def __init__(self) -> None:
        self._producers: dict[str, str] = {}
        self._consumers: dict[str, dict[str, None]] = {}

    def add(self, call_id: str, node: Node) -> None:
        """Adds a call that was checked."""
        for edge in node.outputs:
            self._producers[edge.variable_id] = call_id
        for edge in node.inputs:
            self._consumers.setdefault(edge.variable_id, {})[call_id] = None

    def get_producer(self, variable_id: str) -> str:
        """The call that produces a variable, or the empty text."""
        return self._producers.get(variable_id, "")

    def get_consumers(self, variable_id: str) -> tuple[str, ...]:
        """The calls that consume a variable, in the order they came."""
        return tuple(self._consumers.get(variable_id, ()))


@dataclass(frozen=True, slots=True)
class _Link:
    """A call of a batch waits for another because of a variable."""

    producer: int
    consumer: int
    variable_id: str


def check_outputs(batch: Sequence[Node], valued: Iterable[str], taken: dict[str, str]) -> dict[str, int]:
    """The batch's own producers: variable to place in the batch.

    Args:
        valued: variables that get their value with the batch.
        taken: variables the session has already, with what gave them ("call c-3", "a client").

    Raises:
        Fault: `duplicate_producer`, naming the variable and both of its sources.
    """
    sources = dict(taken) | dict.fromkeys(valued, "a value of this batch")
    producers: dict[str, int] = {}
    for place, node in enumerate(batch):
        for edge in node.outputs:
            if edge.variable_id in sources:
                raise Fault(
                    errors.DUPLICATE_PRODUCER,
                    f"variable {edge.variable_id!r} is the output {edge.name!r} of {_title(place, node)}, "
                    f"but {sources[edge.variable_id]} gives it its value already; a variable has one "
                    "producer, so give this output a variable of its own",
                    field=f"calls[{place}].{edge.name}",
                    variable_id=edge.variable_id,
                )
            sources[edge.variable_id] = _title(place, node)
            producers[edge.variable_id] = place
    return producers


def check_inputs(batch: Sequence[Node], *known: Container[str]) -> None:
    """Every input is one of the `known` variables: the session's, and those of the batch.

    Raises:
        Fault: `unproduced_variable`, naming the placeholder and the variable.
    """
    for place, node in enumerate(batch):
        for edge in node.inputs:
            if not any(edge.variable_id in names for names in known):
                raise Fault(
                    errors.UNPRODUCED_VARIABLE,
                    f"input {edge.name!r} of {_title(place, node)} reads variable {edge.variable_id!r}, "
                    "which no call produces and nobody has set; set it before, or send its value or its "
                    "producer in the same batch",
                    field=f"calls[{place}].{edge.name}",
                    variable_id=edge.variable_id,
                )


def topological_order(batch: Sequence[Node], producers: dict[str, int]) -> list[int]:
    """Places of the batch, producers before consumers, otherwise as submitted.

    Raises:
        Fault: `cyclic_graph`, naming the calls and variables of one cycle.
    """
    links = list(_links(batch, producers))
    waits = [0] * len(batch)
    after: list[list[int]] = [[] for _ in batch]
    for link in links:
        waits[link.consumer] += 1
        after[link.producer].append(link.consumer)
    free = [place for place, count in enumerate(waits) if count == 0]
    order: list[int] = []
    while free:
        place = heapq.heappop(free)
        order.append(place)
        for consumer in after[place]:
            waits[consumer] -= 1
            if waits[consumer] == 0:
                heapq.heappush(free, consumer)
    if len(order) < len(batch):
        raise _cycle(batch, links, {place for place, count in enumerate(waits) if count})
    return order


def _links(batch: Sequence[Node], producers: dict[str, int]) -> Iterator[_Link]:
    for place, node in enumerate(batch):
        for variable_id in dict.fromkeys(edge.variable_id for edge in node.inputs):
            if variable_id in producers:
                yield _Link(producers[variable_id], place, variable_id)


def _cycle(batch: Sequence[Node], links: list[_Link], stuck: set[int]) -> Fault:
    """The error for one cycle. Each stuck call waits for a stuck one, so walking back must close one."""
    back: dict[int, _Link] = {}
    for link in links:
        if link.consumer in stuck and link.producer in stuck:
            back.setdefault(link.consumer, link)
    place = min(stuck)
    walked: dict[int, None] = {}
    while place not in walked:
        walked[place] = None
        place = back[place].producer
    path = list(walked)
    steps = [back[node] for node in path[path.index(place) :]]
    told = "; ".join(
        f"{_title(link.consumer, batch[link.consumer])} waits for {link.variable_id!r} "
        f"of {_title(link.producer, batch[link.producer])}"
        for link in steps[:NAMED_IN_ERROR]
    )
    more = f"; and {len(steps) - NAMED_IN_ERROR} more" if len(steps) > NAMED_IN_ERROR else ""
    return Fault(
        errors.CYCLIC_GRAPH,
        f"these calls wait for one another: {told}{more}",
        field=f"calls[{steps[0].consumer}]",
        variable_id=steps[0].variable_id,
    )


def _title(place: int, node: Node) -> str:
    return f"calls[{place}] ({node.name})" if node.name else f"calls[{place}]"
