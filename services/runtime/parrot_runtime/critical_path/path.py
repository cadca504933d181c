"""The critical path: from the session's end back to its begin, each wait leading to whoever ended it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from parrot_runtime.critical_path.nodes import Network, Node, Signal
from parrot_runtime.critical_path.stages import Stage


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the critical path.

    Attributes:
        node_id: the call or block it is spent in; empty: neither.
    """

    stage: Stage
    node_id: str
    start_ms: float
    end_ms: float

    @property
    def lasted_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


def critical_path(network: Network) -> list[Segment]:
    """The segments, first to last. Each begins where the one before ended, at the very same number."""
    walk = _Walk(network)
    place: tuple[Node, float] | None = (network.nodes[network.end_id], network.nodes[network.end_id].end_ms)
    while place is not None:
        place = walk.back_through(*place)
    return _merged(reversed(walk.segments))


class _Walk:
    """The way back so far."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._seen: set[str] = set()
        self.segments: list[Segment] = []

    def back_through(self, node: Node, at_ms: float) -> tuple[Node, float] | None:
        """Walks a node's tiles back from a time; where the path comes from, None: this was its first node."""
        self._seen.add(node.id)
        place = bisect_left(node.tiles, at_ms, key=lambda tile: tile.start_ms)
        for tile in reversed(node.tiles[:place]):
            at_ms = min(at_ms, tile.end_ms)
            bound = self._network.binding(tile)
            if bound is not None and (source := self._source(bound[0])) is not None:
                from_ms = min(bound[1], at_ms)
                self._add(tile.hop or tile.stage, node, from_ms, at_ms)
                return source, from_ms
            self._add(tile.stage, node, tile.start_ms, at_ms)
            at_ms = tile.start_ms
        if node.cause is None:
            return None
        source = self._source(node.cause)
        if source is None:
            # What can't be followed any further is owned up to.
            first_ms = min(other.start_ms for other in self._network.nodes.values())
            self._add(Stage.UNEXPLAINED, node, first_ms, at_ms)
            return None
        from_ms = min(source.emits[node.cause], at_ms)
        self._add(node.cause_stage, node, from_ms, at_ms, own=False)
        return source, from_ms

    def _source(self, signal: Signal) -> Node | None:
        """Who gave a signal; None: nobody, or the path was there, which of records that fit is never so."""
        emitter = self._network.emitters.get(signal)
        return None if emitter is None or emitter in self._seen else self._network.nodes[emitter]

    def _add(self, stage: Stage, node: Node, start_ms: float, end_ms: float, *, own: bool = True) -> None:
        if end_ms > start_ms:
            self.segments.append(Segment(stage, node.id if own else "", start_ms, end_ms))


def _merged(segments: Iterable[Segment]) -> list[Segment]:
    """The segments, with neighbours of one kind as one."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last is not None and (last.stage, last.node_id) == (segment.stage, segment.node_id):
            merged[-1] = Segment(last.stage, last.node_id, last.start_ms, segment.end_ms)
        else:
            merged.append(segment)
    return merged
