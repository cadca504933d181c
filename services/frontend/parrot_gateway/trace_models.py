"""A session's critical path as the HTTP API tells it. Lengths are ms; `start_ms` counts from its begin."""

from __future__ import annotations

from pydantic import BaseModel, Field

from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.critical_path import Analysis, Stage
from parrot_runtime.critical_path.analysis import Row
from parrot_runtime.critical_path.path import Segment


class StageTime(BaseModel):
    """What of the session's time went into a stage."""

    stage: Stage
    ms: float
    share: float = Field(description="of the whole, 0 to 1")


class PathSegment(BaseModel):
    """A stretch of the critical path; each begins where the one before ended."""

    stage: Stage
    call_id: str = Field(description="the call or block it is spent in; empty: none")
    start_ms: float
    ms: float


class CallStretch(BaseModel):
    """What a call did from a time on."""

    stage: Stage
    start_ms: float
    ms: float


class CallTrace(BaseModel):
    """A call or block, whole."""

    id: str
    name: str
    engine: str
    state: str = Field(description="of a call; empty: it is a block")
    start_ms: float
    ms: float
    on_path_ms: float = Field(description="of its time on the critical path; 0: it held nobody up")
    stages: list[CallStretch]


class WhatIf(BaseModel):
    """The session without a stage, all else as it was."""

    without: Stage
    total_ms: float
    change: float = Field(description="-0.18: 18 % shorter")


class SessionTrace(BaseModel):
    """Where a session's time went."""

    session_id: str
    label: str
    state: str
    trace_id: str
    start_unix_ms: float
    total_ms: float = Field(description="to its end, or until now")
    complete: bool = Field(description="the session has ended; otherwise this is how it stands")
    stages: list[StageTime] = Field(description="they sum to total_ms")
    critical_path: list[PathSegment]
    calls: list[CallTrace]
    what_if: list[WhatIf] = Field(description="what saves most comes first")


def session_trace(session: manager_pb2.Session, state: str, found: Analysis) -> SessionTrace:
    """An analysis as it is told."""
    return SessionTrace(
        session_id=session.id,
        label=session.label,
        state=state,
        trace_id=session.trace_id,
        start_unix_ms=found.start_ms,
        total_ms=_ms(found.total_ms),
        complete=found.ended,
        stages=[
            StageTime(stage=stage, ms=_ms(ms), share=round(ms / found.total_ms, 6) if found.total_ms else 0.0)
            for stage, ms in found.stages.items()
        ],
        critical_path=[_segment(segment, found.start_ms) for segment in found.segments],
        calls=[_call(row, found.start_ms) for row in found.rows],
        what_if=[
            WhatIf(without=one.stage, total_ms=_ms(one.total_ms), change=round(one.change, 6))
            for one in found.what_ifs
        ],
    )


def _segment(segment: Segment, start_ms: float) -> PathSegment:
    return PathSegment(
        stage=segment.stage,
        call_id=segment.node_id,
        start_ms=_ms(segment.start_ms - start_ms),
        ms=_ms(segment.lasted_ms),
    )


def _call(row: Row, start_ms: float) -> CallTrace:
    return CallTrace(
        id=row.id,
        name=row.name,
        engine=row.engine_id,
        state=row.state,
        start_ms=_ms(row.start_ms - start_ms),
        ms=_ms(row.end_ms - row.start_ms),
        on_path_ms=_ms(row.on_path_ms),
        stages=[
            CallStretch(stage=one.stage, start_ms=_ms(one.start_ms - start_ms), ms=_ms(one.lasted_ms))
            for one in row.stretches
        ],
    )


def _ms(value: float) -> float:
    """To the microsecond: what lies beyond it is the arithmetic's."""
    return round(value, 3)
