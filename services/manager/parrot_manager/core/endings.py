"""How calls and variables end, and how that spreads over the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from parrot_manager.core.blocks.skips import is_skipped, skipped_with
from parrot_manager.core.events import AttemptDone
from parrot_manager.core.model import (
    AttemptState,
    Call,
    CallState,
    Failure,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.queueing import advance_consumers, unqueue
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors

VALUE_DIGEST_BYTES: Final = 16


def finish(turn: Turn, live: LiveSession, call: Call, done: AttemptDone) -> None:
    """A call is done: its outputs have their values, and whoever waited for them goes on."""
    turn.end_attempt(live, call, AttemptState.DONE)
    ended = replace(
        call,
        state=CallState.DONE,
        usage=done.usage,
        timings=done.timings,
        provenance=done.provenance,
        marks=call.marks.of_attempt(done.marks),
    )
    _end_call(turn, live, ended)
    keep(turn, live, done.values)


def keep(turn: Turn, live: LiveSession, values: Iterable[Value]) -> None:
    """Commits values that an attempt made, each once; whoever waited for one of them goes on."""
    for value in values:
        if value.variable_id not in live.open_variables:
            continue
        ready = replace(
            live.variables[value.variable_id],
            state=VariableState.READY,
            size_bytes=len(value.data),
            value_digest=digest_of(value.data),
            ready_ms=turn.now_ms,
            published_ms=turn.now_ms,
            finish_reason=value.finish_reason,
        )
        turn.save_variable(live, ready, value)
        advance_consumers(turn, live, ready.id)
        _finish_early(turn, live, ready.id)


def _finish_early(turn: Turn, live: LiveSession, variable_id: str) -> None:
    """Commits the calls that were done already and only lacked this variable's commit."""
    for call_id in live.graph.get_consumers(variable_id):
        if call_id in live.early and call_id not in live.missing:
            finish(turn, live, live.calls[call_id], live.early.pop(call_id))


def digest_of(data: bytes) -> bytes:
    """What tells values apart, for those who look whether prompts are alike."""
    return hashlib.blake2b(data, digest_size=VALUE_DIGEST_BYTES).digest()


def fail(
    turn: Turn,
    live: LiveSession,
    call: Call,
    failure: Failure,
    attempt_state: AttemptState = AttemptState.FAILED,
) -> None:
    """A call fails: so do its outputs and, each naming this one as the cause, all its dependents."""
    turn.end_attempt(live, call, attempt_state)
    spread(turn, live, _end_failed(turn, live, call, failure))


def skip(turn: Turn, live: LiveSession, call: Call, failure: Failure) -> None:
    """A call is skipped, and so are its outputs and its dependents."""
    spread(turn, live, _end_cancelled(turn, live, call, failure, "it is skipped"))


def spread(turn: Turn, live: LiveSession, variables: Iterable[Variable]) -> None:
    """Variables ended without a value: so do the calls that need them. Blocks hear of it by themselves."""
    pending = list(variables)
    while pending:
        variable = pending.pop()
        for call_id in live.graph.get_consumers(variable.id):
            if call_id in live.unfinished:
                pending += _end_with(turn, live, live.calls[call_id], variable)


def end_reader(turn: Turn, live: LiveSession, call: Call, variable: Variable) -> None:
    """A call comes that needs a variable which has ended without a value: it fails, or is skipped."""
    if is_skipped(variable):
        skip(turn, live, call, skipped_with(variable, call.id))
    else:
        fail(turn, live, call, replace(upstream_failure(variable), call_id=call.id))


def upstream_failure(variable: Variable) -> Failure:
    """Why a call fails that needs a variable which failed or was cancelled."""
    why = variable.failure or Failure.of(errors.CANCELLED, "it was cancelled", variable.session_id)
    root = why.root_call_id or variable.producer_call_id or variable.producer_block_id
    return Failure(
        type=errors.UPSTREAM_FAILED.type,
        message=f"its input {variable.id!r} has no value, because {root} failed: {why.root_type}",
        session_id=variable.session_id,
        variable_id=variable.id,
        may_retry=why.may_retry,
        cause_type=why.root_type,
        cause_call_id=root,
    )


def cancel(turn: Turn, live: LiveSession, call: Call, failure: Failure, reason: str) -> None:
    """A call is cancelled, with its outputs; its engine is told. What depends on it is another matter."""
    _end_cancelled(turn, live, call, failure, reason)


def end_all(turn: Turn, live: LiveSession, state: CallState, failure: Failure, reason: str) -> None:
    """Ends everything unfinished in a session, as failed or cancelled, and tells the engines."""
    attempt_state = AttemptState.CANCELLED if state is CallState.CANCELLED else AttemptState.FAILED
    for call_id in list(live.unfinished):
        call = live.calls[call_id]
        _leave(turn, live, call, attempt_state, reason)
        _end_call(turn, live, replace(call, state=state, failure=replace(failure, call_id=call_id)))
    ended = VariableState.CANCELLED if state is CallState.CANCELLED else VariableState.FAILED
    for variable_id in list(live.open_variables):
        variable = live.variables[variable_id]
        why = replace(failure, call_id=variable.producer_call_id, variable_id=variable_id)
        _end_variable(turn, live, replace(variable, state=ended, failure=why))


def _end_with(turn: Turn, live: LiveSession, call: Call, variable: Variable) -> list[Variable]:
    if is_skipped(variable):
        return _end_cancelled(turn, live, call, skipped_with(variable, call.id), "it is skipped")
    if variable.state is VariableState.CANCELLED:
        told = f"{variable.id!r}, which it needs, was cancelled"
        why = Failure.of(errors.CANCELLED, told, call.session_id, call.id)
        return _end_cancelled(turn, live, call, why, "it was cancelled")
    return _end_failed(turn, live, call, replace(upstream_failure(variable), call_id=call.id))


def _end_cancelled(
    turn: Turn, live: LiveSession, call: Call, failure: Failure, reason: str
) -> list[Variable]:
    _leave(turn, live, call, AttemptState.CANCELLED, reason)
    _end_call(turn, live, replace(call, state=CallState.CANCELLED, failure=failure))
    return _end_outputs(turn, live, call, VariableState.CANCELLED, failure)


def _end_failed(turn: Turn, live: LiveSession, call: Call, failure: Failure) -> list[Variable]:
    """Ends a call and its outputs; those that came to nothing."""
    # One that was sent ahead of its inputs runs, or waits for them on its engine.
    _leave(turn, live, call, AttemptState.FAILED, "an input of it failed")
    _end_call(turn, live, replace(call, state=CallState.FAILED, failure=failure))
    return _end_outputs(turn, live, call, VariableState.FAILED, failure)


def _end_outputs(
    turn: Turn, live: LiveSession, call: Call, state: VariableState, failure: Failure
) -> list[Variable]:
    """Ends the outputs of a call that have no value: what an earlier attempt made of them stays."""
    lost: list[Variable] = []
    for variable_id in live.open_outputs(call):
        variable = live.variables[variable_id]
        ended = replace(variable, state=state, failure=failure.about(variable_id))
        _end_variable(turn, live, ended)
        lost.append(ended)
    return lost


def _leave(turn: Turn, live: LiveSession, call: Call, attempt_state: AttemptState, reason: str) -> None:
    unqueue(turn, live, call.id)
    turn.cancel_attempt(live, call, attempt_state, reason)


def _end_call(turn: Turn, live: LiveSession, call: Call) -> None:
    turn.save_call(live, replace(call, ended_ms=turn.now_ms, spec=b"", shape=()))
    turn.state.fleet.forget_call(call.session_id, call.id)


def _end_variable(turn: Turn, live: LiveSession, variable: Variable) -> None:
    turn.save_variable(live, variable)
    turn.publish_end(live, variable)
