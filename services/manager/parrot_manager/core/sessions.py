"""What happens to whole sessions, and to batches of calls that join them."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.blocks.advance import join_blocks
from parrot_manager.core.commands import PublishValue
from parrot_manager.core.endings import end_all
from parrot_manager.core.events import CallsAccepted, SessionClosing, SessionOpened, TimerKind
from parrot_manager.core.joining import join, want
from parrot_manager.core.model import CallState, Failure, Session, SessionState
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_opened(turn: Turn, event: SessionOpened) -> None:
    """A session begins; its deadline is armed."""
    session = event.session
    if session.id not in turn.state.sessions:
        marks = replace(session.marks, opened_ms=session.marks.opened_ms or turn.now_ms)
        turn.state.sessions[session.id] = LiveSession(replace(session, marks=marks))
        turn.arm(TimerKind.SESSION_DEADLINE, session.id, session.deadline_ms)


def on_accepted(turn: Turn, event: CallsAccepted) -> None:
    """A batch joins its session, which may have ended while the batch was being stored."""
    live = turn.state.sessions[event.session_id]
    if event.batch is not None:
        live.batches[event.batch.key] = event.batch
    for variable in event.variables:
        live.put_variable(variable)
    for value in event.values:
        turn.do(PublishValue(live.session.id, live.session.tenant, value))
    for call in event.calls:
        live.graph.add(call.id, call)
        live.put_call(replace(call, marks=replace(call.marks, entered_ms=turn.now_ms)))
    join(turn, live, event.calls)
    join_blocks(turn, live, event.blocks)
    want(turn, live, event.wanted)
    if live.session.state.ended:
        end_late(turn, live)


def on_closing(turn: Turn, event: SessionClosing) -> None:
    """A client ends its session: what has not finished is cancelled."""
    live = turn.state.sessions[event.session_id]
    if not live.session.state.ended:
        live.session = closing(live.session, event)
        close(turn, live)


def closing(session: Session, event: SessionClosing) -> Session:
    """A session that its client wants to end, as that is stored: whoever has it then ends it."""
    marks = replace(session.marks, settled_ms=event.settled_ms, closing_ms=event.asked_ms)
    return replace(session, state=SessionState.CLOSING, marks=marks)


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


def close(turn: Turn, live: LiveSession) -> None:
    """Ends a session as a client wants it."""
    unfinished = bool(live.unfinished or live.open_variables)
    _end_cancelled(turn, live)
    _end(turn, live, SessionState.CANCELLED if unfinished else SessionState.CLOSED)


def close_finished(turn: Turn) -> None:
    """Closes the sessions that end with their calls, where the last of what they were given has ended."""
    for session_id in turn.touched:
        live = turn.state.sessions.get(session_id)
        if live is None or not live.session.ends_with_calls or live.session.state.ended:
            continue
        if (live.calls or live.blocks.all) and not live.unfinished and not live.blocks.open:
            close(turn, live)


def end_late(turn: Turn, live: LiveSession) -> None:
    """Ends what an ended session still holds unfinished, the way the rest of it ended."""
    if live.session.state is SessionState.EXPIRED:
        _end_expired(turn, live)
    else:
        _end_cancelled(turn, live)


def retain(turn: Turn, session: Session) -> None:
    """Keeps an ended session in memory for a while."""
    turn.arm(TimerKind.FORGET, session.id, turn.now_ms + turn.policy.retain_ms)


def _end(turn: Turn, live: LiveSession, state: SessionState) -> None:
    turn.save_session(replace(live.session, state=state, ended_ms=turn.now_ms))
    retain(turn, live.session)


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
