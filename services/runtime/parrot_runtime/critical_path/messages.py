"""Records from what a manager tells of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.critical_path.records import BlockTimes, CallTimes, Lap, SessionTimes, VariableTimes
from parrot_runtime.critical_path.stages import Stage

_STAGES: Final = {
    common_pb2.STAGE_INPUTS: Stage.INPUTS,
    common_pb2.STAGE_QUEUE: Stage.QUEUE,
    common_pb2.STAGE_STATIC_PREFILL: Stage.STATIC_PREFILL,
    common_pb2.STAGE_DYNAMIC_PREFILL: Stage.DYNAMIC_PREFILL,
    common_pb2.STAGE_DECODE: Stage.DECODE,
    common_pb2.STAGE_TRANSFORMS: Stage.TRANSFORMS,
    common_pb2.STAGE_PUBLISH: Stage.COMMIT,
}


def times_of(found: manager_pb2.GetSessionResponse) -> SessionTimes:
    """A session's times."""
    session = found.session
    return SessionTimes(
        id=session.id,
        created_ms=session.created_unix_ms,
        opened_ms=session.marks.opened_unix_ms,
        settled_ms=session.marks.settled_unix_ms,
        closing_ms=session.marks.closing_unix_ms,
        ended_ms=session.ended_unix_ms,
        lazy=session.lazy,
        calls=tuple(map(_call, found.calls)),
        variables=tuple(map(_variable, found.variables)),
        blocks=tuple(map(_block, found.blocks)),
    )


def _call(call: manager_pb2.Call) -> CallTimes:
    marks = call.marks
    return CallTimes(
        id=call.id,
        name=call.name,
        accepted_ms=call.accepted_unix_ms,
        block_id=call.block_id,
        engine_id=call.engine_id,
        state=common_pb2.CallState.Name(call.state).removeprefix("CALL_STATE_").lower(),
        by_client=call.native == "client",
        settled_ms=marks.settled_unix_ms,
        entered_ms=marks.entered_unix_ms,
        ready_ms=call.ready_unix_ms,
        first_dispatched_ms=marks.first_dispatched_unix_ms,
        dispatched_ms=call.dispatched_unix_ms,
        sent_ms=marks.sent_unix_ms,
        told_ms=marks.told_unix_ms,
        ended_ms=call.ended_unix_ms,
        laps=tuple(map(_lap, marks.laps)),
        inputs=_ids(call.inputs),
    )


def _lap(lap: common_pb2.Lap) -> Lap:
    waits = lap.stage == common_pb2.STAGE_INPUTS
    return Lap(
        _STAGES.get(lap.stage, Stage.UNEXPLAINED),
        lap.lasted_ms,
        awaited=lap.variable_id if waits else "",
        published="" if waits else lap.variable_id,
    )


def _variable(variable: manager_pb2.Variable) -> VariableTimes:
    producer_id = variable.producer_call_id or variable.producer_block_id
    return VariableTimes(variable.id, producer_id, variable.ready_unix_ms)


def _block(block: manager_pb2.Block) -> BlockTimes:
    return BlockTimes(
        id=block.id,
        name=block.name,
        accepted_ms=block.accepted_unix_ms,
        unfolded_ms=block.unfolded_unix_ms,
        ended_ms=block.ended_unix_ms,
        inputs=_ids(block.inputs),
    )


def _ids(edges: Iterable[manager_pb2.Edge]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(edge.variable_id for edge in edges))
