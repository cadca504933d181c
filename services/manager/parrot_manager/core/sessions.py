"""What happens to whole sessions, and to batches of calls that join them."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.commands import Probe, PublishValue
from parrot_manager.core.endings import end_all, fail, upstream_failure
from parrot_manager.core.events import (
    CallsAccepted,
    SessionClosing,
    SessionOpened,
    SessionRestored,
    TimerKind,
)
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Call,
    CallState,
    Failure,
    Session,
    SessionState,
    Variable,
    VariableState,
)
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_opened(turn: Turn, event: SessionOpened) -> None:
    """A session begins; its deadline is armed."""
    session = event.session
    turn.state.sessions[session.id] = LiveSession(session)
    turn.arm(TimerKind.SESSION_DEADLINE, session.id, session.deadline_ms)


def on_accepted(turn: Turn, event: CallsAccepted) -> None:
    """A batch joins its session, which may have ended while the batch was being stored."""
    live = turn.state.sessions[event.session_id]
    for variable in event.variables:
        live.put_variable(variable)
    for value in event.values:
        turn.do(PublishValue(live.session.id, live.session.tenant, value))
    for call in event.calls:
        live.graph.add(call.id, call)
        live.put_call(call)
    for call in event.calls:
        _join(turn, live, live.calls[call.id])
    if live.session.state.ended:
        _end_late(turn, live)


def on_closing(turn: Turn, event: SessionClosing) -> None:
    """A client ends its session: what has not finished is cancelled."""
    live = turn.state.sessions[event.session_id]
    if not live.session.state.ended:
        _close(turn, live)


def expire(turn: Turn, session_id: str) -> None:
    """A session's deadline has passed: what has not finished fails."""
    live = turn.state.sessions.get(session_id)
    if live is None or live.session.state.ended:
        return
    if live.session.deadline_ms > turn.now_ms:
        turn.arm(TimerKind.SESSION_DEADLINE, session_id, live.session.deadline_ms)
        return
    _end_expired(turn, live)
    _end(turn, live, SessionState.EXPIRED)


def forget(turn: Turn, session_id: str) -> None:
    """An ended session has been in memory long enough."""
    live = turn.state.sessions.get(session_id)
    if live is not None and live.session.state.ended:
        turn.forget(session_id)


def on_restored(turn: Turn, event: SessionRestored) -> None:
    """A session comes back from the store. Ends that may not have reached the bus are told again."""
    live = LiveSession(event.session)
    turn.state.sessions[event.session.id] = live
    for variable in event.variables:
        live.put_variable(replace(variable, published_ms=_last_published(variable)))
    for call in event.calls:
        live.graph.add(call.id, call)
        live.put_call(call)
    _resume_attempts(turn, live, event.attempts)
    for call_id in list(live.unfinished):
        if call_id not in live.attempts:
            _join(turn, live, live.calls[call_id])
    for variable in event.variables:
        if variable.state in {VariableState.FAILED, VariableState.CANCELLED}:
            turn.publish_end(live, variable)
    _resume_session(turn, live)


def _join(turn: Turn, live: LiveSession, call: Call) -> None:
    """Lets an unfinished call wait, queues it, or fails it with an input that has failed."""
    if live.calls[call.id].state.ended:
        return
    inputs = [live.variables[name] for name in call.input_ids]
    failed = [variable for variable in inputs if variable.state > VariableState.READY]
    missing = sum(not variable.state.ended for variable in inputs)
    if failed:
        fail(turn, live, call, replace(upstream_failure(failed[0]), call_id=call.id))
    elif missing:
        live.missing[call.id] = missing
        live.put_call(replace(call, state=CallState.WAITING))
    else:
        turn.queue(live, call)


def _last_published(variable: Variable) -> int:
    """What a client set may not have reached the bus; what an engine made has."""
    return variable.ready_ms if variable.producer_call_id else 0


def _resume_attempts(turn: Turn, live: LiveSession, attempts: tuple[Attempt, ...]) -> None:
    for attempt in attempts:
        call = live.calls[attempt.ref.call_id]
        if attempt.state is AttemptState.RUNNING and not call.state.ended:
            live.attempts[call.id] = attempt
            turn.do(Probe(attempt.ref, live.session.tenant, call.output_ids, restarted=True))


def _resume_session(turn: Turn, live: LiveSession) -> None:
    session = live.session
    if session.state is SessionState.CLOSING:
        _close(turn, live)
    elif session.state is SessionState.OPEN:
        turn.arm(TimerKind.SESSION_DEADLINE, session.id, session.deadline_ms)
    else:
        _end_late(turn, live)
        _retain(turn, session)


def _close(turn: Turn, live: LiveSession) -> None:
    unfinished = bool(live.unfinished or live.open_variables)
    _end_cancelled(turn, live)
    _end(turn, live, SessionState.CANCELLED if unfinished else SessionState.CLOSED)


def _end(turn: Turn, live: LiveSession, state: SessionState) -> None:
    turn.save_session(replace(live.session, state=state, ended_ms=turn.now_ms))
    _retain(turn, live.session)


def _retain(turn: Turn, session: Session) -> None:
    turn.arm(TimerKind.FORGET, session.id, turn.now_ms + turn.policy.retain_ms)


def _end_late(turn: Turn, live: LiveSession) -> None:
    """Ends what an ended session still holds unfinished, the way the rest of it ended."""
    if live.session.state is SessionState.EXPIRED:
        _end_expired(turn, live)
    else:
        _end_cancelled(turn, live)


def _end_cancelled(turn: Turn, live: LiveSession) -> None:
    why = Failure.of(errors.CANCELLED, "the session was closed before it finished", live.session.id)
    end_all(turn, live, CallState.CANCELLED, why, "the session was closed")


def _end_expired(turn: Turn, live: LiveSession) -> None:
    seconds = (live.session.deadline_ms - live.session.created_ms) / 1000
    why = Failure.of(
        errors.DEADLINE_EXCEEDED,
        f"the session's {seconds:g} s were over before it finished; open it with a longer time-out",
        live.session.id,
    )
    end_all(turn, live, CallState.FAILED, why, "the session's deadline passed")
