"""Between snapshots and rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Batch,
    Call,
    CallState,
    Edge,
    Failure,
    NativeKind,
    Provenance,
    Ref,
    Session,
    SessionState,
    Timings,
    Usage,
    Variable,
    VariableState,
)
from parrot_manager.store import mark_rows

Params = dict[str, Any]


def session_row(session: Session) -> Params:
    """A new session's row."""
    return {
        "id": session.id,
        "tenant": session.tenant,
        "label": session.label,
        "state": int(session.state),
        "created_ms": session.created_ms,
        "deadline_ms": session.deadline_ms,
        "ended_ms": session.ended_ms,
        "trace": dict(session.trace),
        "criteria": _criteria(session.criteria),
        "lazy": session.lazy,
        "idempotency_key": session.idempotency_key,
        "body_digest": session.body_digest,
        "ends_with_calls": session.ends_with_calls,
    }


def session_status(session: Session) -> Params:
    """What of a session's row changes."""
    return {
        "state": int(session.state),
        "ended_ms": session.ended_ms,
        "marks": mark_rows.session_marks(session.marks),
    }


def to_session(row: Row[Any]) -> Session:
    """The session of a row."""
    return Session(
        id=row.id,
        tenant=row.tenant,
        label=row.label,
        state=SessionState(row.state),
        created_ms=row.created_ms,
        deadline_ms=row.deadline_ms,
        ended_ms=row.ended_ms,
        trace=tuple(row.trace.items()),
        criteria=_to_criteria(row.criteria),
        lazy=row.lazy,
        idempotency_key=row.idempotency_key,
        body_digest=row.body_digest,
        ends_with_calls=row.ends_with_calls,
        marks=mark_rows.to_session_marks(row.marks),
    )


def call_row(call: Call) -> Params:
    """A new call's row."""
    return {
        "session_id": call.session_id,
        "number": call.number,
        "position": call.order,
        "name": call.name,
        "model": call.model,
        "inputs": _edges(call.inputs),
        "outputs": _edges(call.outputs),
        # An instance's is its block's.
        "spec": b"" if call.block_id else call.spec,
        "accepted_ms": call.accepted_ms,
        "block_id": call.block_id,
        "reserved_tokens": call.reserved_tokens,
        "native": call.native.value if call.native is not None else "",
        **call_status(call),
    }


def call_status(call: Call) -> Params:
    """What of a call's row changes."""
    return {
        "state": int(call.state),
        "failure": _failure(call.failure),
        "engine_id": call.engine_id,
        "attempt": call.attempt,
        **asdict(call.usage),
        **asdict(call.timings),
        "provenance": None if call.provenance is None else asdict(call.provenance),
        "ready_ms": call.ready_ms,
        "dispatched_ms": call.dispatched_ms,
        "ended_ms": call.ended_ms,
        "losses": call.losses,
        "placement": call.placement,
        "marks": mark_rows.marks(call.marks),
    }


def to_call(row: Row[Any]) -> Call:
    """The call of a row."""
    return Call(
        session_id=row.session_id,
        id=f"c-{row.number}",
        number=row.number,
        order=row.position,
        name=row.name,
        model=row.model,
        inputs=_to_edges(row.inputs),
        outputs=_to_edges(row.outputs),
        spec=row.spec,
        accepted_ms=row.accepted_ms,
        state=CallState(row.state),
        failure=_to_failure(row.failure),
        engine_id=row.engine_id,
        attempt=row.attempt,
        usage=Usage(row.prompt_tokens, row.cached_tokens, row.output_tokens),
        timings=_to_timings(row),
        provenance=None if row.provenance is None else Provenance(**row.provenance),
        ready_ms=row.ready_ms,
        dispatched_ms=row.dispatched_ms,
        ended_ms=row.ended_ms,
        losses=row.losses,
        placement=row.placement,
        block_id=row.block_id,
        reserved_tokens=row.reserved_tokens,
        native=NativeKind(row.native) if row.native else None,
        marks=mark_rows.to_marks(row.marks),
    )


def variable_row(variable: Variable, value: bytes | None) -> Params:
    """A new variable's row."""
    return {
        "session_id": variable.session_id,
        "id": variable.id,
        "name": variable.name,
        "producer_call_id": variable.producer_call_id,
        "producer_block_id": variable.producer_block_id,
        "value": value,
        **variable_status(variable),
    }


def variable_status(variable: Variable) -> Params:
    """What of a variable's row changes, its value excepted."""
    return {
        "state": int(variable.state),
        "size_bytes": variable.size_bytes,
        "failure": _failure(variable.failure),
        "ready_ms": variable.ready_ms,
        "criteria": _criteria(variable.criteria),
        "value_digest": variable.value_digest,
        "finish_reason": variable.finish_reason,
    }


def to_variable(row: Row[Any]) -> Variable:
    """The variable of a row."""
    return Variable(
        session_id=row.session_id,
        id=row.id,
        name=row.name,
        state=VariableState(row.state),
        producer_call_id=row.producer_call_id,
        size_bytes=row.size_bytes,
        failure=_to_failure(row.failure),
        ready_ms=row.ready_ms,
        criteria=_to_criteria(row.criteria),
        value_digest=row.value_digest,
        producer_block_id=row.producer_block_id,
        finish_reason=row.finish_reason,
    )


def attempt_row(attempt: Attempt) -> Params:
    """An attempt's row."""
    return {
        "session_id": attempt.ref.session_id,
        "call_number": int(attempt.ref.call_id.removeprefix("c-")),
        "attempt": attempt.ref.attempt,
        "engine_id": attempt.engine_id,
        "state": int(attempt.state),
        "started_ms": attempt.started_ms,
        "ended_ms": attempt.ended_ms,
        "reason": attempt.reason,
    }


def to_attempt(row: Row[Any]) -> Attempt:
    """The attempt of a row."""
    return Attempt(
        ref=Ref(row.session_id, f"c-{row.call_number}", row.attempt),
        engine_id=row.engine_id,
        state=AttemptState(row.state),
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        reason=row.reason,
    )


def batch_row(session_id: str, batch: Batch) -> Params:
    """A batch's row."""
    return {
        "session_id": session_id,
        "key": batch.key,
        "digest": batch.digest,
        "call_ids": list(batch.call_ids),
    }


def to_batch(row: Row[Any]) -> Batch:
    """The batch of a row."""
    return Batch(row.key, row.digest, tuple(row.call_ids))


def _edges(edges: Iterable[Edge]) -> list[list[str]]:
    return [[edge.name, edge.variable_id] for edge in edges]


def _to_edges(pairs: list[list[str]]) -> tuple[Edge, ...]:
    return tuple(Edge(name, variable_id) for name, variable_id in pairs)


def _to_timings(row: Row[Any]) -> Timings:
    return Timings(
        queue_ms=row.queue_ms,
        prefill_ms=row.prefill_ms,
        decode_ms=row.decode_ms,
        static_prefill_ms=row.static_prefill_ms,
        dynamic_prefill_ms=row.dynamic_prefill_ms,
        static_prefill_tokens=row.static_prefill_tokens,
        dynamic_prefill_tokens=row.dynamic_prefill_tokens,
    )


def _failure(failure: Failure | None) -> Params | None:
    return None if failure is None else asdict(failure)


def _to_failure(fields: Params | None) -> Failure | None:
    return None if fields is None else Failure(**fields)


def _criteria(criteria: Criteria | None) -> Params | None:
    return None if criteria is None else {"kind": int(criteria.kind), "deadline_ms": criteria.deadline_ms}


def _to_criteria(fields: Params | None) -> Criteria | None:
    return None if fields is None else Criteria(ObjectiveKind(fields["kind"]), fields["deadline_ms"])
