"""The graph of a session: calls are nodes, variables are edges from one producer to many consumers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from parrot_manager.core.conditions import Condition
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

    @property
    def when(self) -> Condition | None:
        """What must hold for it to run."""


class Submitted(Protocol):
    """A call or block of a request."""

    @property
    def name(self) -> str:
        """The function's name."""

    @property
    def inputs(self) -> tuple[Edge, ...]:
        """What it reads, and what its condition is about."""

    @property
    def outputs(self) -> tuple[Edge, ...]:
        """What it makes."""

    @property
    def path(self) -> str:
        """Where it stands in the request; empty: where its place among the calls says."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a graph keeps of a call."""

    name: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    path: str = ""


class Graph:
    """Who produces and who consumes each variable of a session, by the ids of calls and blocks.

    A block reads what it waits for, and what its instances make; it makes its outputs.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Kept] = {}
        self._producers: dict[str, str] = {}
        self._consumers: dict[str, dict[str, None]] = {}

    def add(self, call_id: str, node: Node) -> None:
        """Adds a call or block that was checked; what its condition is about is an input of it too."""
        self._nodes[call_id] = _Kept(node.name, (), node.outputs)
        for edge in node.outputs:
            self._producers[edge.variable_id] = call_id
        asked = (Edge("when", node.when.variable_id),) if node.when is not None else ()
        self.add_inputs(call_id, node.inputs + asked)

    def add_inputs(self, call_id: str, edges: tuple[Edge, ...]) -> None:
        """A call or block reads more than it did."""
        kept = self._nodes[call_id]
        self._nodes[call_id] = replace(kept, inputs=kept.inputs + edges)
        for edge in edges:
            self._consumers.setdefault(edge.variable_id, {})[call_id] = None

    def get_producer(self, variable_id: str) -> str:
        """The call that produces a variable, or the empty text."""
        return self._producers.get(variable_id, "")

    def get_consumers(self, variable_id: str) -> tuple[str, ...]:
        """The calls that consume a variable, in the order they came."""
        return tuple(self._consumers.get(variable_id, ()))

    def producers_of(self, call_id: str) -> Iterator[str]:
        """The calls whose outputs a call reads; one that makes several of them comes as often."""
        inputs = self._nodes[call_id].inputs
        return filter(None, (self.get_producer(edge.variable_id) for edge in inputs))

    def consumers_of(self, call_id: str) -> Iterator[str]:
        """The calls that read an output of a call; one that reads several comes as often."""
        for edge in self._nodes[call_id].outputs:
            yield from self._consumers.get(edge.variable_id, ())

    def ancestors(self, call_ids: Iterable[str]) -> set[str]:
        """These calls and all that they wait for, however far up."""
        return _reached(call_ids, self.producers_of)

    def descendants(
        self, call_ids: Iterable[str], needs: Callable[[str, str], bool] = lambda consumer, variable: True
    ) -> set[str]:
        """These calls and all that wait for them, however far down.

        Args:
            needs: whether a consumer needs a variable; those that don't are passed over.
        """

        def step(call_id: str) -> Iterator[str]:
            for edge in self._nodes[call_id].outputs:
                for consumer_id in self._consumers.get(edge.variable_id, ()):
                    if needs(consumer_id, edge.variable_id):
                        yield consumer_id

        return _reached(call_ids, step)

    def topological_order(self) -> list[str]:
        """All calls, producers before consumers, otherwise as they came."""
        places = {call_id: place for place, call_id in enumerate(self._nodes)}
        producers = {variable_id: places[call_id] for variable_id, call_id in self._producers.items()}
        names = list(self._nodes)
        return [names[place] for place in topological_order(list(self._nodes.values()), producers)]


def _reached(call_ids: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    found = set(call_ids)
    looked = list(found)
    while looked:
        for name in step(looked.pop()):
            if name not in found:
                found.add(name)
                looked.append(name)
    return found


@dataclass(frozen=True, slots=True)
class _Link:
    """A call of a batch waits for another because of a variable."""

    producer: int
    consumer: int
    variable_id: str


def check_outputs(batch: Sequence[Submitted], valued: Iterable[str], taken: dict[str, str]) -> dict[str, int]:
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
                    field=f"{_path(place, node)}.{edge.name}",
                    variable_id=edge.variable_id,
                )
            sources[edge.variable_id] = _title(place, node)
            producers[edge.variable_id] = place
    return producers


def check_inputs(batch: Sequence[Submitted], *known: Container[str]) -> None:
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
                    field=f"{_path(place, node)}.{edge.name}",
                    variable_id=edge.variable_id,
                )


def topological_order(batch: Sequence[Submitted], producers: dict[str, int]) -> list[int]:
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


def _links(batch: Sequence[Submitted], producers: dict[str, int]) -> Iterator[_Link]:
    for place, node in enumerate(batch):
        for variable_id in dict.fromkeys(edge.variable_id for edge in node.inputs):
            if variable_id in producers:
                yield _Link(producers[variable_id], place, variable_id)


def _cycle(batch: Sequence[Submitted], links: list[_Link], stuck: set[int]) -> Fault:
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
        field=_path(steps[0].consumer, batch[steps[0].consumer]),
        variable_id=steps[0].variable_id,
    )


def _title(place: int, node: Submitted) -> str:
    path = _path(place, node)
    return f"{path} ({node.name})" if node.name else path


def _path(place: int, node: Submitted) -> str:
    return node.path or f"calls[{place}]"
