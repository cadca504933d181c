"""What engines report of the attempts they run. What is late or said twice changes nothing."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.commands import Cancel
from parrot_manager.core.endings import fail, finish
from parrot_manager.core.events import (
    AttemptDone,
    AttemptFailed,
    AttemptLost,
    AttemptStarted,
    AttemptStreaming,
    AttemptUndelivered,
)
from parrot_manager.core.model import (
    AttemptState,
    Call,
    CallState,
    Failure,
    Ref,
    VariableState,
)
from parrot_manager.core.state import LiveSession, State
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def running_call(state: State, ref: Ref) -> tuple[LiveSession, Call] | None:
    """The call whose running attempt this is; None when it is over, or never was."""
    live = state.sessions.get(ref.session_id)
    attempt = live.attempts.get(ref.call_id) if live is not None else None
    if live is None or attempt is None or attempt.ref != ref:
        return None
    return live, live.calls[ref.call_id]


def on_started(turn: Turn, event: AttemptStarted) -> None:
    """An engine took the call up. Not worth a write: the next one carries it."""
    found = running_call(turn.state, event.ref)
    if found is not None:
        live, call = found
        live.put_call(replace(call, state=CallState.RUNNING))


def on_streaming(turn: Turn, event: AttemptStreaming) -> None:
    """From here on the call can't be run again unseen."""
    found = running_call(turn.state, event.ref)
    if found is None or event.variable_id not in found[1].output_ids:
        return
    live, _ = found
    variable = live.variables[event.variable_id]
    if variable.state is VariableState.PENDING:
        turn.save_variable(live, replace(variable, state=VariableState.STREAMING))


def on_done(turn: Turn, event: AttemptDone) -> None:
    """Commits a call, once."""
    found = running_call(turn.state, event.ref)
    if found is not None:
        live, call = found
        finish(turn, live, call, event)


def on_failed(turn: Turn, event: AttemptFailed) -> None:
    """Fails the call, unless an input only has to be put on the bus again."""
    found = running_call(turn.state, event.ref)
    if found is None:
        return
    live, call = found
    if _may_refetch(turn, live, call, event.failure):
        retry = replace(call, value_retries=call.value_retries + 1)
        _again(turn, live, retry, AttemptState.FAILED)
    else:
        failure = replace(event.failure, session_id=live.session.id, call_id=call.id)
        fail(turn, live, call, failure)


def on_lost(turn: Turn, event: AttemptLost) -> None:
    """Fails the call with what became of its attempt, or runs it again when nobody can tell."""
    found = running_call(turn.state, event.ref)
    if found is None:
        return
    live, call = found
    engine_id = live.attempts[call.id].engine_id
    if not event.restarted:
        why = f"engine {engine_id} died while it ran the call; submit it again"
        turn.do(Cancel(event.ref, engine_id, "its engine was given up"))
        fail(turn, live, call, _failure(errors.ENGINE_LOST, why, call), AttemptState.LOST)
    elif event.streamed or _is_streaming(live, call):
        why = "the manager was restarted while the call streamed its output; submit it again"
        turn.do(Cancel(event.ref, engine_id, "the manager was restarted"))
        fail(turn, live, call, _failure(errors.INTERRUPTED, why, call), AttemptState.LOST)
    else:
        turn.do(Cancel(event.ref, engine_id, "superseded after the manager was restarted"))
        _again(turn, live, call, AttemptState.SUPERSEDED)


def on_undelivered(turn: Turn, event: AttemptUndelivered) -> None:
    """The engine never heard of it: the call goes to another."""
    found = running_call(turn.state, event.ref)
    if found is not None:
        live, call = found
        _again(turn, live, call, AttemptState.SUPERSEDED)


def _again(turn: Turn, live: LiveSession, call: Call, attempt_state: AttemptState) -> None:
    turn.end_attempt(live, call, attempt_state)
    turn.queue(live, replace(call, engine_id=""))


def _may_refetch(turn: Turn, live: LiveSession, call: Call, failure: Failure) -> bool:
    return (
        failure.type == errors.VALUE_UNAVAILABLE.type
        and call.value_retries < turn.policy.value_retries
        and not _is_streaming(live, call)
    )


def _is_streaming(live: LiveSession, call: Call) -> bool:
    return any(live.variables[name].state is VariableState.STREAMING for name in call.output_ids)


def _failure(kind: errors.Kind, message: str, call: Call) -> Failure:
    return Failure.of(kind, message, call.session_id, call.id)
