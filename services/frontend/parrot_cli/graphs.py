"""A session's graph as it is drawn: calls and blocks, and the variables between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

OPEN_ENDED: Final = ("running", "dispatched", "ready", "waiting", "accepted")


@dataclass(frozen=True)
class Node:
    """A call, a block, or several calls of one function that stand at the same place.

    Attributes:
        kind: call, map, loop or select.
        members: what the server says of the calls it stands for; of a block, of its instances.
        inputs: variables by the placeholder's name, in order; outputs alike.
        states: how many of its calls are in which state; a block counts as one.
    """

    ids: tuple[str, ...]
    name: str
    kind: str
    states: Mapping[str, int]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    members: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None

    @property
    def reads(self) -> frozenset[str]:
        """The variables it waits for."""
        return frozenset(variable for _, variable in self.inputs)


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they can run, and what each of them depends on.

    Attributes:
        producers: by node, the nodes that make what it reads, as places in `nodes`.
        given: variables that the client set, and that some node reads; their names by their ids.
    """

    nodes: tuple[Node, ...]
    given: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """By node: the places of those that make what it reads."""
        makers = {variable: place for place, node in enumerate(self.nodes) for _, variable in node.outputs}
        return tuple(
            tuple(sorted({makers[variable] for variable in node.reads if variable in makers} - {place}))
            for place, node in enumerate(self.nodes)
        )

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """By node: how many others, at the most, come one after another before it."""
        found: list[int] = []
        for producers in self.producers:
            found.append(1 + max((found[place] for place in producers), default=-1))
        return tuple(found)


def graph_of(session: Mapping[str, Any]) -> Graph:
    """The graph of a session, as the server's answer has it. Instances stand for their block."""
    blocks = {block["id"]: named(block, session["variables"]) for block in session["blocks"]}
    instances: dict[str, list[Mapping[str, Any]]] = {name: [] for name in blocks}
    nodes: list[Node] = []
    for call in session["calls"]:
        if call["block_id"] in blocks:
            instances[call["block_id"]].append(call)
        else:
            nodes.append(_call_node(call))
    nodes += [_block_node(block, instances[name]) for name, block in blocks.items()]
    read = {variable for node in nodes for variable in node.reads}
    given = {
        variable["id"]: variable["name"] or variable["id"]
        for variable in session["variables"]
        if variable["id"] in read and not variable["producer_call_id"] and not variable["producer_block_id"]
    }
    return Graph(tuple(_in_order(nodes)), given)


def named(block: Mapping[str, Any], variables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A block whose edges have their variables' names, instead of the places in it where they are named."""
    names = {variable["id"]: variable["name"] or variable["id"] for variable in variables}
    edges = {
        side: [{**edge, "name": names.get(edge["semantic_var_id"], edge["name"])} for edge in block[side]]
        for side in ("inputs", "outputs")
    }
    return {**block, **edges}


def grouped(graph: Graph) -> Graph:
    """The same, with calls of one function at one depth as one node: a map-reduce has two."""
    groups: dict[tuple[Any, ...], list[Node]] = {}
    for place, (node, depth) in enumerate(zip(graph.nodes, graph.depths, strict=True)):
        key = (depth, node.name) if node.kind == "call" and node.name else (depth, node.name, place)
        groups.setdefault(key, []).append(node)
    merged = [_merged(nodes) for _, nodes in sorted(groups.items(), key=lambda item: item[0][0])]
    return Graph(tuple(merged), graph.given)


def counted(states: Mapping[str, int]) -> list[tuple[str, int]]:
    """States with their numbers: those that are over first, then those that are nearest their end."""
    late = [name for name in OPEN_ENDED if name in states]
    return [(name, states[name]) for name in [*sorted(states.keys() - set(OPEN_ENDED)), *late]]


def _call_node(call: Mapping[str, Any]) -> Node:
    return Node(
        (call["id"],),
        call["name"],
        "call",
        {_state(call): 1},
        _edges(call["inputs"]),
        _edges(call["outputs"]),
        (call,),
        call["error"],
    )


def _block_node(block: Mapping[str, Any], instances: Sequence[Mapping[str, Any]]) -> Node:
    return Node(
        (block["id"],),
        block["name"],
        block["kind"],
        {_state(block): 1},
        _edges(block["inputs"]),
        # What an instance makes can be read from outside too.
        _edges(block["outputs"]) + tuple(edge for call in instances for edge in _edges(call["outputs"])),
        tuple(instances),
        block["error"],
    )


def _state(node: Mapping[str, Any]) -> str:
    """Its state; one whose condition did not hold is cancelled, and says why."""
    skipped = (node["error"] or {}).get("type", "").endswith(":skipped")
    return "skipped" if skipped else str(node["state"])


def _edges(edges: Iterable[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((edge["name"], edge["semantic_var_id"]) for edge in edges)


def _merged(nodes: Sequence[Node]) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    states: Counter[str] = Counter()
    for node in nodes:
        states.update(node.states)
    return Node(
        tuple(name for node in nodes for name in node.ids),
        nodes[0].name,
        nodes[0].kind,
        states,
        tuple(edge for node in nodes for edge in node.inputs),
        tuple(edge for node in nodes for edge in node.outputs),
        tuple(member for node in nodes for member in node.members),
        next((node.error for node in nodes if node.error), None),
    )


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, each behind all it depends on, and otherwise as they came."""
    makers = {variable: node for node in nodes for _, variable in node.outputs}
    waits = {
        node.ids: {makers[variable].ids for variable in node.reads if variable in makers} - {node.ids}
        for node in nodes
    }
    readers: dict[tuple[str, ...], list[Node]] = {node.ids: [] for node in nodes}
    for node in nodes:
        for maker in waits[node.ids]:
            readers[maker].append(node)
    ordered = [node for node in nodes if not waits[node.ids]]
    for node in ordered:
        for reader in readers[node.ids]:
            waits[reader.ids].discard(node.ids)
            if not waits[reader.ids]:
                ordered.append(reader)
    return ordered
