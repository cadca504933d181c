"""Sessions that come back from the store, at a start or from another manager, and that go to another."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.blocks.advance import dressed, restore_blocks
from parrot_manager.core.commands import Adopt
from parrot_manager.core.events import SessionReleased, SessionRestored, TimerKind
from parrot_manager.core.joining import activate_restored, join
from parrot_manager.core.model import Attempt, Call, Ref, SessionState, Variable, VariableState
from parrot_manager.core.natives import tell_stored
from parrot_manager.core.sessions import close, end_late, retain
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn


def on_restored(turn: Turn, event: SessionRestored) -> None:
    """A session comes back from the store. Ends that may not have reached the bus are told again."""
    live = LiveSession(event.session)
    turn.state.sessions[event.session.id] = live
    live.batches.update((batch.key, batch) for batch in event.batches)
    for variable in event.variables:
        live.put_variable(replace(variable, published_ms=_last_published(variable)))
    blocks = {block.id: block for block in event.blocks}
    for call in (dressed(call, blocks) for call in event.calls):
        live.graph.add(call.id, call)
        live.put_call(call)
    restore_blocks(turn, live, event.blocks)
    _resume_attempts(turn, live, event.attempts)
    join(turn, live, [live.calls[name] for name in live.unfinished if name not in live.attempts])
    activate_restored(turn, live)
    tell_stored(turn, live)
    for variable in event.variables:
        if variable.state in {VariableState.FAILED, VariableState.CANCELLED}:
            turn.publish_end(live, variable)
    _resume_session(turn, live)


def on_released(turn: Turn, event: SessionReleased) -> None:
    """A session is another manager's: it leaves memory as it is."""
    live = turn.state.sessions.get(event.session_id)
    if live is None:
        return
    for attempt in live.attempts.values():
        turn.drop_orphan(attempt)
        turn.state.fleet.freed(attempt.engine_id, attempt.ref)
    for ref, engine_id in live.stopping.items():
        turn.state.fleet.freed(engine_id, ref)
    for call_id in live.unfinished:
        turn.state.fleet.forget_call(event.session_id, call_id)
    del turn.state.sessions[event.session_id]


def _last_published(variable: Variable) -> int:
    """What a client set may not have reached the bus; what an engine made has."""
    return variable.ready_ms if variable.producer_call_id else 0


def _resume_attempts(turn: Turn, live: LiveSession, attempts: tuple[Attempt, ...]) -> None:
    """Asks for the last attempt of each unfinished call: its engine may run it, or the bus have its traces.

    That goes for one that is known to be lost too: its call may not have been sent on.
    """
    last = {attempt.ref.call_id: attempt for attempt in sorted(attempts, key=_number)}
    asked: dict[str, list[Ref]] = {}
    for call_id in live.unfinished:
        attempt = last.get(call_id)
        if attempt is not None:
            _adopt_later(turn, live, live.calls[call_id], attempt)
            asked.setdefault(attempt.engine_id, []).append(attempt.ref)
    for engine_id, refs in asked.items():
        if engine_id in turn.state.engines:
            turn.tell_fleet(Adopt(engine_id, tuple(refs)))
    if asked:
        turn.arm(TimerKind.ADOPT, live.session.id, turn.now_ms + turn.policy.adopt_ms)


def _number(attempt: Attempt) -> int:
    return attempt.ref.attempt


def _adopt_later(turn: Turn, live: LiveSession, call: Call, attempt: Attempt) -> None:
    live.attempts[call.id] = attempt
    missing = len(live.open_inputs(call))
    if missing:
        live.missing[call.id] = missing
    turn.state.orphans.setdefault(attempt.engine_id, {})[attempt.ref] = None


def _resume_session(turn: Turn, live: LiveSession) -> None:
    session = live.session
    if session.state is SessionState.CLOSING:
        close(turn, live)
    elif session.state is SessionState.OPEN:
        turn.arm(TimerKind.SESSION_DEADLINE, session.id, session.deadline_ms)
    else:
        end_late(turn, live)
        retain(turn, session)
