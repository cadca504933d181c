"""What engines report of the attempts they run. What is late or said twice changes nothing."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.commands import Cancel, Probe
from parrot_manager.core.endings import fail, finish, keep
from parrot_manager.core.events import (
    AttemptDone,
    AttemptFailed,
    AttemptLost,
    AttemptStarted,
    AttemptStreaming,
    AttemptUndelivered,
    TimerKind,
)
from parrot_manager.core.model import (
    AttemptState,
    Call,
    CallState,
    Failure,
    Ref,
    Value,
    VariableState,
)
from parrot_manager.core.queueing import reconsider_consumers, settle
from parrot_manager.core.retries import delay_ms, may_retry
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


def _open_call(state: State, ref: Ref) -> tuple[LiveSession, Call] | None:
    """As `running_call`, but for an attempt that is done and only waits for its inputs to be committed."""
    found = running_call(state, ref)
    return None if found is None or ref.call_id in found[0].early else found


def look(turn: Turn, ref: Ref, *, restarted: bool = False, fence: bool = False) -> None:
    """Has the bus looked at for what an attempt left, if that is still running for all we know."""
    found = running_call(turn.state, ref)
    if found is not None:
        live, call = found
        engine_id = live.attempts[call.id].engine_id
        turn.drop_orphan(live.attempts[call.id])
        outputs = live.open_outputs(call)
        turn.do(Probe(ref, live.session.tenant, engine_id, outputs, restarted, fence))


def on_started(turn: Turn, event: AttemptStarted) -> None:
    """An engine took the call up. Not worth a write: the next one carries it."""
    found = running_call(turn.state, event.ref)
    if found is None:
        return
    live, call = found
    live.put_call(replace(call, state=CallState.RUNNING))
    turn.state.fleet.started(event.ref, turn.now_ms)
    if call.id in live.troubles:
        live.troubles[call.id].streamed = ()


def on_streaming(turn: Turn, event: AttemptStreaming) -> None:
    """From here on the call can't be run again unseen. Its text says so too, as long as the bus has it."""
    found = running_call(turn.state, event.ref)
    if found is None or event.variable_id not in found[1].output_ids:
        return
    live, _ = found
    variable = live.variables[event.variable_id]
    if variable.state is VariableState.PENDING:
        turn.save_variable(live, replace(variable, state=VariableState.STREAMING), can_wait=True)


def on_done(turn: Turn, event: AttemptDone) -> None:
    """Commits a call, once."""
    found = running_call(turn.state, event.ref)
    if found is not None:
        live, call = found
        _finish_in_time(turn, live, call, event)


def _finish_in_time(turn: Turn, live: LiveSession, call: Call, done: AttemptDone) -> None:
    """Commits a call, behind its inputs: one that was sent ahead may be done before its producer is."""
    if call.id in live.missing:
        live.early[call.id] = done
    else:
        finish(turn, live, call, done)


def on_failed(turn: Turn, event: AttemptFailed) -> None:
    """Fails the call, unless another try may do better, or it has outputs that may be whole by now.

    Then what this attempt left is looked at first: who has read a whole output is not told that it failed.
    """
    found = _open_call(turn.state, event.ref)
    if found is None:
        return
    live, call = found
    # Not worth a write: the next one carries it.
    call = replace(call, usage=event.usage, marks=call.marks.of_attempt(event.marks))
    live.put_call(call)
    failure = replace(event.failure, session_id=live.session.id, call_id=call.id)
    stopped = _called_back(live, call) and failure.type == errors.ENGINE_LOST.type
    several = len(live.open_outputs(call)) > 1
    if not event.blind and (stopped or several or may_retry(turn, live, call, failure)):
        live.trouble(call.id).failure = failure
        look(turn, event.ref)
    else:
        fail(turn, live, call, failure)


def on_lost(turn: Turn, event: AttemptLost) -> None:
    """Keeps what an attempt has made, and has the call go on behind what it streamed."""
    found = _open_call(turn.state, event.ref)
    if found is None:
        return
    live, call = found
    trouble = live.trouble(call.id)
    failure, trouble.failure = trouble.failure, None
    if len(event.values) == len(live.open_outputs(call)):
        _finish_in_time(turn, live, call, AttemptDone(event.ref, event.values))
        return
    called_back, trouble.called_back = trouble.called_back, False
    _keep_in_time(turn, live, call, event.values)
    trouble.streamed = event.streamed
    if called_back or event.restarted:
        _stop(turn, live, call, "superseded")
        _again(turn, live, call, AttemptState.SUPERSEDED)
    else:
        _after_loss(turn, live, call, failure)


def _keep_in_time(turn: Turn, live: LiveSession, call: Call, values: tuple[Value, ...]) -> None:
    """Commits outputs; those of a call whose inputs are not committed only count as made."""
    trouble = live.trouble(call.id)
    if call.id not in live.missing:
        trouble.made = ()
        keep(turn, live, values)
        return
    made = {value.variable_id: live.variables[value.variable_id] for value in values}
    trouble.made = tuple(
        replace(made[value.variable_id], state=VariableState.READY, size_bytes=len(value.data))
        for value in values
    )


def call_back(turn: Turn) -> None:
    """Has consumers give way that were sent ahead, where their producer found no place after all.

    What they hold may be what it lacks, and they would wait for each other.
    """
    for producer in turn.again:
        live = turn.state.sessions.get(producer.session_id)
        if live is None or producer.id not in live.queued:
            continue
        for call_id in dict.fromkeys(live.graph.consumers_of(producer.id)):
            attempt = live.attempts.get(call_id)
            waits = call_id in live.missing and call_id not in live.early
            if attempt is not None and waits and not _called_back(live, live.calls[call_id]):
                live.trouble(call_id).called_back = True
                turn.do(Cancel(attempt.ref, attempt.engine_id, "what it waits for needs the place"))


def _called_back(live: LiveSession, call: Call) -> bool:
    found = live.troubles.get(call.id)
    return found is not None and found.called_back


def on_undelivered(turn: Turn, event: AttemptUndelivered) -> None:
    """The engine never heard of it: the call goes to another."""
    found = _open_call(turn.state, event.ref)
    if found is not None:
        live, call = found
        turn.state.fleet.freed(live.attempts[call.id].engine_id, event.ref)
        _again(turn, live, call, AttemptState.SUPERSEDED)


def retry(turn: Turn, timer_id: str) -> None:
    """A call has waited long enough for its next try."""
    session_id, _, call_id = timer_id.partition("/")
    live = turn.state.sessions.get(session_id)
    if live is not None and live.backing_off(call_id):
        live.troubles[call_id].backing_off = False
        turn.again.append(live.calls[call_id])
        settle(turn, live, live.calls[call_id])


def _after_loss(turn: Turn, live: LiveSession, call: Call, failure: Failure | None) -> None:
    engine_id = live.attempts[call.id].engine_id
    why = failure or _lost_with(engine_id, call)
    state = AttemptState.LOST if failure is None else AttemptState.FAILED
    if failure is None:
        _stop(turn, live, call, "its engine was given up")
    if not may_retry(turn, live, call, why):
        fail(turn, live, call, why, state)
    elif why.type == errors.VALUE_UNAVAILABLE.type:
        _again(turn, live, replace(call, value_retries=call.value_retries + 1), state)
    else:
        trouble = live.trouble(call.id)
        if why.type == errors.ENGINE_ERROR.type:
            trouble.avoid |= {engine_id}
        losses = call.losses + 1
        _back_off(turn, live, call, delay_ms(turn, losses))
        _again(turn, live, replace(call, losses=losses), state)


def _stop(turn: Turn, live: LiveSession, call: Call, reason: str) -> None:
    """Tells an engine that may be there after all."""
    attempt = live.attempts[call.id]
    turn.do(Cancel(attempt.ref, attempt.engine_id, reason))


def _back_off(turn: Turn, live: LiveSession, call: Call, wait_ms: int) -> None:
    if wait_ms:
        live.trouble(call.id).backing_off = True
        turn.arm(TimerKind.RETRY, f"{live.session.id}/{call.id}", turn.now_ms + wait_ms)


def _again(turn: Turn, live: LiveSession, call: Call, attempt_state: AttemptState) -> None:
    turn.end_attempt(live, call, attempt_state)
    turn.save_call(live, replace(call, state=CallState.READY, engine_id="", dispatched_ms=0))
    turn.again.append(live.calls[call.id])
    reconsider_consumers(turn, live, live.calls[call.id])
    settle(turn, live, live.calls[call.id])


def _lost_with(engine_id: str, call: Call) -> Failure:
    why = f"engine {engine_id} died while it ran the call; submit it again"
    return Failure.of(errors.ENGINE_LOST, why, call.session_id, call.id)
