"""What if: the same graph, run again on paper with the time of one stage left out.

Every tile lasts as long as it did, or not at all if it is of that stage, and begins when what it depends on
says so: a wait that becomes short because others do does so here too, and another chain may become the
longest. What the stage's absence would do to the others (a batch that is larger, since nobody queued for it)
is not foreseen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from parrot_runtime.critical_path.nodes import Network, Node, Signal, Tile
from parrot_runtime.critical_path.stages import Stage


class Replay:
    """A session that can be run again; the order of its nodes is found once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._order = _in_order(network)
        self._bindings = {
            node.id: [network.binding(tile) if tile.waits else None for tile in node.tiles]
            for node in self._order
        }
        self._emitted: dict[Signal, float] = {}

    def end_ms(self, without: Stage | None = None) -> float:
        """When the session would have ended."""
        self._emitted = {}
        ends: dict[str, float] = {}
        for node in self._order:
            ends[node.id] = self._run(node, without)
        return ends[self._network.end_id]

    def _run(self, node: Node, without: Stage | None) -> float:
        begin_ms = at_ms = self._begin(node, without)
        begins, ends = [], []
        for tile, bound in zip(node.tiles, self._bindings[node.id], strict=True):
            begins.append(at_ms)
            at_ms = self._through(tile, bound, at_ms, without)
            ends.append(at_ms)
        for signal in node.emits:
            self._emitted[signal] = _moved(node, signal, begin_ms, begins, ends)
        return at_ms

    def _begin(self, node: Node, without: Stage | None) -> float:
        if node.cause is None or node.cause not in self._emitted:
            return node.start_ms
        gap_ms = node.start_ms - (self._network.time_of(node.cause) or node.start_ms)
        return self._emitted[node.cause] + (0.0 if node.cause_stage is without else gap_ms)

    def _through(
        self, tile: Tile, bound: tuple[Signal, float] | None, at_ms: float, without: Stage | None
    ) -> float:
        if bound is None:
            own_ms = at_ms + (0.0 if tile.stage is without else tile.lasted_ms)
            # One that came in time then may be what it waits for now.
            return max([own_ms, *self._given(tile)])
        hop_ms = 0.0 if (tile.hop or tile.stage) is without else tile.end_ms - bound[1]
        return max([at_ms, *(given_ms + hop_ms for given_ms in self._given(tile))])

    def _given(self, tile: Tile) -> Iterable[float]:
        return (self._emitted[signal] for signal in tile.waits if signal in self._emitted)


def _moved(node: Node, signal: Signal, begin_ms: float, begins: list[float], ends: list[float]) -> float:
    """When a signal is given: behind the same tile as it was, or as long behind the begin of the same."""
    if (behind := node.behind.get(signal)) is not None:
        return ends[behind - 1] if behind else begin_ms
    emitted_ms = node.emits[signal]
    place = bisect_left(node.tiles, emitted_ms, key=lambda tile: tile.end_ms)
    return min(begins[place] + max(0.0, emitted_ms - node.tiles[place].start_ms), ends[place])


def _in_order(network: Network) -> list[Node]:
    """The nodes, each behind all it depends on; what depends on itself, by records that do not fit, last."""
    needs = {node.id: _needs(network, node) for node in network.nodes.values()}
    readers: dict[str, list[str]] = {node_id: [] for node_id in needs}
    for node_id, needed in needs.items():
        for other in needed:
            readers[other].append(node_id)
    left = {node_id: len(needed) for node_id, needed in needs.items()}
    ready = deque(node_id for node_id, count in left.items() if not count)
    order: list[str] = []
    while ready:
        node_id = ready.popleft()
        order.append(node_id)
        for reader in readers[node_id]:
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    placed = set(order)
    order += sorted(
        (name for name in needs if name not in placed), key=lambda name: network.nodes[name].end_ms
    )
    return [network.nodes[node_id] for node_id in order]


def _needs(network: Network, node: Node) -> set[str]:
    signals = [signal for tile in node.tiles for signal in tile.waits]
    signals += [node.cause] if node.cause is not None else []
    return {network.emitters[signal] for signal in signals if signal in network.emitters} - {node.id}
