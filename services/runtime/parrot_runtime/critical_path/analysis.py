"""The whole answer: path, sums, what-ifs, and every call's own time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parrot_runtime.critical_path.building import BEGIN, END, build
from parrot_runtime.critical_path.nodes import Network
from parrot_runtime.critical_path.path import Segment, critical_path
from parrot_runtime.critical_path.records import SessionTimes
from parrot_runtime.critical_path.replay import Replay
from parrot_runtime.critical_path.stages import Stage

_ASKED = frozenset(Stage) - {Stage.RUNNING, Stage.UNEXPLAINED}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How long the session would have been without a stage; see `replay`.

    Attributes:
        change: of the whole, as a fraction: -0.18 is 18 % shorter.
    """

    stage: Stage
    total_ms: float
    change: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a call or block did from a time on, on the critical path or not."""

    stage: Stage
    start_ms: float
    lasted_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """A call's or block's own time, whole. `on_path_ms`: of it on the critical path."""

    id: str
    name: str
    engine_id: str
    state: str
    start_ms: float
    end_ms: float
    on_path_ms: float
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """A session's critical path. Times are Unix milliseconds of its manager's clock.

    Attributes:
        ended: whether the session is over; otherwise this is how it stands.
        total_ms: from its creation to its end, or until now.
        stages: time on the path by stage, those with none left out; they sum to the total.
        segments: the path, first to last.
        rows: of each call, by its begin.
        what_ifs: the one that saves most first; those that save nothing left out.
    """

    session_id: str
    ended: bool
    start_ms: float
    end_ms: float
    total_ms: float
    stages: dict[Stage, float]
    segments: tuple[Segment, ...]
    rows: tuple[Row, ...]
    what_ifs: tuple[WhatIf, ...]


def analyse(session: SessionTimes, now_ms: float) -> Analysis:
    """A session's critical path, and what else it could have been.

    Args:
        now_ms: by the manager's clock, or near it; up to then what has not ended is counted.
    """
    network = build(session, now_ms)
    segments = critical_path(network)
    named = {call.id for call in session.calls} | {block.id for block in session.blocks}
    shown = [segment if segment.node_id in named else _unnamed(segment) for segment in segments]
    start_ms, end_ms = network.nodes[BEGIN].start_ms, network.nodes[END].end_ms
    stages = _sums(segments)
    return Analysis(
        session_id=session.id,
        ended=bool(session.ended_ms),
        start_ms=start_ms,
        end_ms=end_ms,
        total_ms=end_ms - start_ms,
        stages=stages,
        segments=tuple(shown),
        rows=tuple(_rows(session, network, segments)),
        what_ifs=tuple(_what_ifs(network, end_ms - start_ms, stages)),
    )


def _unnamed(segment: Segment) -> Segment:
    return Segment(segment.stage, "", segment.start_ms, segment.end_ms)


def _sums(segments: Iterable[Segment]) -> dict[Stage, float]:
    found: dict[Stage, list[float]] = {}
    for segment in segments:
        found.setdefault(segment.stage, []).append(segment.lasted_ms)
    return {stage: math.fsum(found[stage]) for stage in Stage if stage in found}


def _rows(session: SessionTimes, network: Network, segments: Iterable[Segment]) -> list[Row]:
    on_path: dict[str, float] = {}
    for segment in segments:
        on_path[segment.node_id] = on_path.get(segment.node_id, 0.0) + segment.lasted_ms
    told = [(call.id, call.name, call.engine_id, call.state) for call in session.calls]
    told += [(block.id, block.name, "", "") for block in session.blocks]
    rows = []
    for node_id, name, engine_id, state in told:
        node = network.nodes[node_id]
        stretches = tuple(
            Stretch(tile.stage, tile.start_ms, tile.lasted_ms) for tile in node.tiles if tile.lasted_ms > 0
        )
        spent_ms = on_path.get(node_id, 0.0)
        rows.append(Row(node_id, name, engine_id, state, node.start_ms, node.end_ms, spent_ms, stretches))
    return sorted(rows, key=lambda row: (row.start_ms, row.end_ms))


def _what_ifs(network: Network, total_ms: float, on_path: Iterable[Stage]) -> list[WhatIf]:
    # Without a stage that is not on it the path stays as long as it is.
    asked = [stage for stage in on_path if stage in _ASKED]
    if not asked or total_ms <= 0:
        return []
    replay, start_ms = Replay(network), network.nodes[BEGIN].start_ms
    found = []
    for stage in asked:
        without_ms = replay.end_ms(stage) - start_ms
        change = without_ms / total_ms - 1
        if change < -1e-4:
            found.append(WhatIf(stage, without_ms, change))
    return sorted(found, key=lambda one: one.change)
