"""Between the core's snapshots and the messages of the contracts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.criteria import Criteria, Objective
from parrot_manager.core.graph import Graph
from parrot_manager.core.marks import Marks, SessionMarks
from parrot_manager.core.model import (
    Call,
    Edge,
    Failure,
    Load,
    Provenance,
    Ref,
    Session,
    SharedContext,
    Timings,
    Usage,
    Variable,
)
from parrot_manager.marks import lasted_ms, to_laps
from parrot_manager.store.listing import ListedSession
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import telemetry
from parrot_runtime.errors import Fault, clip

WORD_BYTES: Final = 200


def to_session(session: Session, *, with_marks: bool = False) -> manager_pb2.Session:
    """A session as gateways see it. Without marks it is the same whichever manager tells it."""
    return manager_pb2.Session(
        id=session.id,
        tenant=session.tenant,
        label=session.label,
        state=common_pb2.SessionState.ValueType(session.state),
        created_unix_ms=session.created_ms,
        deadline_unix_ms=session.deadline_ms,
        ended_unix_ms=session.ended_ms,
        trace_id=telemetry.trace_id_of(dict(session.trace)),
        criteria=to_criteria(session.criteria),
        lazy=session.lazy,
        marks=_session_marks(session.marks) if with_marks else None,
    )


def to_listed(listed: ListedSession) -> manager_pb2.ListedSession:
    """A session in a list."""
    return manager_pb2.ListedSession(
        session=to_session(listed.session), calls=listed.calls, calls_ended=listed.calls_ended
    )


def to_call(call: Call) -> manager_pb2.Call:
    """A call as gateways see it."""
    return manager_pb2.Call(
        id=call.id,
        name=call.name,
        model=call.model,
        state=common_pb2.CallState.ValueType(call.state),
        inputs=_edges(call.inputs),
        outputs=_edges(call.outputs),
        failure=to_failure(call.failure),
        engine_id=call.engine_id,
        attempt=call.attempt,
        usage=to_usage(call.usage),
        timings=common_pb2.Timings(**asdict(call.timings)),
        provenance=common_pb2.Provenance(**asdict(call.provenance)) if call.provenance else None,
        accepted_unix_ms=call.accepted_ms,
        ready_unix_ms=call.ready_ms,
        dispatched_unix_ms=call.dispatched_ms,
        ended_unix_ms=call.ended_ms,
        objective=_objective(call.objective),
        placement=call.placement,
        block_id=call.block_id,
        native=call.native.value if call.native is not None else "",
        marks=_marks(call.marks),
    )


def to_usage(usage: Usage) -> common_pb2.Usage:
    """Tokens as gateways see them."""
    return common_pb2.Usage(**asdict(usage))


def to_variable(variable: Variable, graph: Graph) -> manager_pb2.Variable:
    """A variable as gateways see it."""
    return manager_pb2.Variable(
        id=variable.id,
        name=variable.name,
        state=common_pb2.VariableState.ValueType(variable.state),
        producer_call_id=variable.producer_call_id,
        consumer_call_ids=[name for name in graph.get_consumers(variable.id) if name.startswith("c-")],
        size_bytes=variable.size_bytes,
        failure=to_failure(variable.failure),
        ready_unix_ms=variable.ready_ms,
        criteria=to_criteria(variable.criteria),
        producer_block_id=variable.producer_block_id,
        finish_reason=variable.finish_reason,
    )


def to_block(block: Block) -> manager_pb2.Block:
    """A block as gateways see it."""
    return manager_pb2.Block(
        id=block.id,
        name=block.name,
        kind=block.kind,
        state=manager_pb2.BlockState.ValueType(block.state),
        inputs=_edges(block.inputs),
        outputs=_edges(block.outputs),
        instances=block.count,
        failure=to_failure(block.failure),
        accepted_unix_ms=block.accepted_ms,
        unfolded_unix_ms=block.unfolded_ms,
        ended_unix_ms=block.ended_ms,
    )


def to_failure(failure: Failure | None) -> common_pb2.Failure | None:
    """A failure as it travels; None stays None."""
    if failure is None:
        return None
    return common_pb2.Failure(
        type=failure.type,
        message=failure.message,
        session_id=failure.session_id,
        call_id=failure.call_id,
        variable_id=failure.variable_id,
        may_retry=failure.may_retry,
        cause_type=failure.cause_type,
        cause_call_id=failure.cause_call_id,
    )


def from_failure(message: common_pb2.Failure) -> Failure:
    """A failure an engine tells: of a type we know, its message clipped and without NUL."""
    fault = Fault.from_failure(message)
    return Failure(
        type=fault.kind.type,
        message=fault.message,
        call_id=fault.call_id,
        variable_id=fault.variable_id,
        may_retry=fault.kind.may_retry,
    )


def from_context(context: engine_pb2.SharedContext) -> SharedContext:
    """A shared context as its engine told of it."""
    return SharedContext(context.context_id, context.prefix_hash, context.tokens, context.in_kv)


def from_heartbeat(heartbeat: engine_pb2.Heartbeat) -> Load:
    """What an engine says of itself."""
    return Load(
        running=heartbeat.running,
        waiting=heartbeat.waiting,
        paused=heartbeat.paused,
        kv_used_fraction=heartbeat.kv_used_fraction,
        held_tokens=heartbeat.held_tokens,
        free_tokens=heartbeat.free_tokens,
        step_ms=lasted_ms(heartbeat.step_ms),
        prefill_token_ms=lasted_ms(heartbeat.prefill_token_ms),
        piece_token_ms=lasted_ms(heartbeat.piece_token_ms),
    )


def to_criteria(criteria: Criteria | None) -> manager_pb2.Criteria | None:
    """What a reader wants, as it travels; None stays None."""
    if criteria is None:
        return None
    kind = manager_pb2.ObjectiveKind.ValueType(criteria.kind)
    return manager_pb2.Criteria(kind=kind, deadline_unix_ms=criteria.deadline_ms)


def _objective(objective: Objective | None) -> manager_pb2.Objective | None:
    if objective is None:
        return None
    return manager_pb2.Objective(
        kind=manager_pb2.ObjectiveKind.ValueType(objective.kind),
        group=objective.group,
        reason=objective.reason,
        latest_finish_unix_ms=objective.latest_finish_ms,
    )


def from_ref(ref: engine_pb2.AttemptRef) -> Ref:
    """The attempt a message is about."""
    return Ref(ref.session_id, ref.call_id, ref.attempt)


def to_ref(ref: Ref) -> engine_pb2.AttemptRef:
    """An attempt as it is named to engines."""
    return engine_pb2.AttemptRef(session_id=ref.session_id, call_id=ref.call_id, attempt=ref.attempt)


def from_usage(usage: common_pb2.Usage) -> Usage:
    """Tokens, as an engine counted them."""
    return Usage(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)


def from_timings(timings: common_pb2.Timings) -> Timings:
    """Durations, as an engine measured them; what is no time is 0."""
    return Timings(
        queue_ms=lasted_ms(timings.queue_ms),
        prefill_ms=lasted_ms(timings.prefill_ms),
        decode_ms=lasted_ms(timings.decode_ms),
        static_prefill_ms=lasted_ms(timings.static_prefill_ms),
        dynamic_prefill_ms=lasted_ms(timings.dynamic_prefill_ms),
        static_prefill_tokens=timings.static_prefill_tokens,
        dynamic_prefill_tokens=timings.dynamic_prefill_tokens,
    )


def from_provenance(done: engine_pb2.AttemptDone) -> Provenance | None:
    """What made an attempt's outputs, if the engine says so: each word clipped and without NUL."""
    if not done.HasField("provenance"):
        return None
    said = done.provenance
    return Provenance(
        engine_id=_word(said.engine_id),
        model=_word(said.model),
        dtype=_word(said.dtype),
        backend=_word(said.backend),
        backend_version=_word(said.backend_version),
        attention=_word(said.attention),
        tensor_parallel=said.tensor_parallel,
        batch_invariant=said.batch_invariant,
        version=_word(said.version),
    )


def _session_marks(marks: SessionMarks) -> manager_pb2.SessionMarks:
    return manager_pb2.SessionMarks(
        opened_unix_ms=marks.opened_ms,
        settled_unix_ms=marks.settled_ms,
        closing_unix_ms=marks.closing_ms,
    )


def _marks(marks: Marks) -> common_pb2.Marks:
    return common_pb2.Marks(
        entered_unix_ms=marks.entered_ms,
        first_dispatched_unix_ms=marks.first_dispatched_ms,
        sent_unix_ms=marks.sent_ms,
        told_unix_ms=marks.told_ms,
        laps=to_laps(marks.laps),
        settled_unix_ms=marks.settled_ms,
    )


def _word(text: str) -> str:
    return clip(text, WORD_BYTES)


def _edges(edges: Iterable[Edge]) -> list[manager_pb2.Edge]:
    return [manager_pb2.Edge(name=edge.name, variable_id=edge.variable_id) for edge in edges]
