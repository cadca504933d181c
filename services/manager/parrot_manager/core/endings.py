"""How calls and variables end, and how that spreads over the graph."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.events import AttemptDone
from parrot_manager.core.model import (
    AttemptState,
    Call,
    CallState,
    Failure,
    Variable,
    VariableState,
)
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def finish(turn: Turn, live: LiveSession, call: Call, done: AttemptDone) -> None:
    """A call is done: its outputs have their values, and whoever waited for them goes on."""
    turn.end_attempt(live, call, AttemptState.DONE)
    ended = replace(
        call, state=CallState.DONE, usage=done.usage, timings=done.timings, provenance=done.provenance
    )
    _end_call(turn, live, ended)
    for value in done.values:
        ready = replace(
            live.variables[value.variable_id],
            state=VariableState.READY,
            size_bytes=len(value.data),
            ready_ms=turn.now_ms,
            published_ms=turn.now_ms,
        )
        turn.save_variable(live, ready, value)
        advance_consumers(turn, live, ready.id)


def advance_consumers(turn: Turn, live: LiveSession, variable_id: str) -> None:
    """A variable became ready: counts it off, and queues the calls that waited for it alone."""
    for call_id in live.graph.get_consumers(variable_id):
        missing = live.missing.get(call_id)
        if missing is not None:
            live.missing[call_id] = missing - 1
            if missing == 1:
                turn.queue(live, live.calls[call_id])


def fail(
    turn: Turn,
    live: LiveSession,
    call: Call,
    failure: Failure,
    attempt_state: AttemptState = AttemptState.FAILED,
) -> None:
    """A call fails: so do its outputs and, each naming this one as the cause, all its dependents."""
    pending = [(call, failure)]
    while pending:
        failed, why = pending.pop()
        if live.calls[failed.id].state.ended:
            continue
        lost = _end_failed(turn, live, failed, why, attempt_state)
        pending += [
            (live.calls[call_id], replace(upstream_failure(variable), call_id=call_id))
            for variable in lost
            for call_id in live.graph.get_consumers(variable.id)
        ]


def upstream_failure(variable: Variable) -> Failure:
    """Why a call fails that needs a variable which failed or was cancelled."""
    why = variable.failure or Failure.of(errors.CANCELLED, "it was cancelled", variable.session_id)
    root = why.root_call_id or variable.producer_call_id
    return Failure(
        type=errors.UPSTREAM_FAILED.type,
        message=f"its input {variable.id!r} has no value, because call {root} failed: {why.root_type}",
        session_id=variable.session_id,
        variable_id=variable.id,
        may_retry=why.may_retry,
        cause_type=why.root_type,
        cause_call_id=root,
    )


def end_all(turn: Turn, live: LiveSession, state: CallState, failure: Failure, reason: str) -> None:
    """Ends everything unfinished in a session, as failed or cancelled, and tells the engines."""
    attempt_state = AttemptState.CANCELLED if state is CallState.CANCELLED else AttemptState.FAILED
    for call_id in list(live.unfinished):
        call = live.calls[call_id]
        turn.unqueue(live, call_id)
        turn.cancel_attempt(live, call, attempt_state, reason)
        _end_call(turn, live, replace(call, state=state, failure=replace(failure, call_id=call_id)))
    ended = VariableState.CANCELLED if state is CallState.CANCELLED else VariableState.FAILED
    for variable_id in list(live.open_variables):
        variable = live.variables[variable_id]
        why = replace(failure, call_id=variable.producer_call_id, variable_id=variable_id)
        _end_variable(turn, live, replace(variable, state=ended, failure=why))


def _end_failed(
    turn: Turn, live: LiveSession, call: Call, failure: Failure, attempt_state: AttemptState
) -> list[Variable]:
    turn.unqueue(live, call.id)
    turn.end_attempt(live, call, attempt_state)
    _end_call(turn, live, replace(call, state=CallState.FAILED, failure=failure))
    lost: list[Variable] = []
    for variable_id in call.output_ids:
        variable = live.variables[variable_id]
        failed = replace(variable, state=VariableState.FAILED, failure=failure.about(variable_id))
        _end_variable(turn, live, failed)
        lost.append(failed)
    return lost


def _end_call(turn: Turn, live: LiveSession, call: Call) -> None:
    turn.save_call(live, replace(call, ended_ms=turn.now_ms, spec=b""))


def _end_variable(turn: Turn, live: LiveSession, variable: Variable) -> None:
    turn.save_variable(live, variable)
    turn.publish_end(live, variable)
