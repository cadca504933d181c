"""Calls whose code the client runs: a worker claims one when its inputs are there, and hands in its outputs.

No engine has to do with them, and no attempt is made of them: who has claimed one is stored with the call.
Until when is not: a claim that comes back from the store has its lease anew.
"""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.commands import PublishStored, PublishValue
from parrot_manager.core.endings import fail, finish
from parrot_manager.core.events import AttemptDone, TimerKind
from parrot_manager.core.model import Call, CallState, Failure, VariableState
from parrot_manager.core.native_events import CallClaimed, ClaimRenewed, NativeDone, NativeFailed
from parrot_manager.core.offers import claimant, hold, worker_of
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_claimed(turn: Turn, event: CallClaimed) -> None:
    """A worker claims a call; who claims again what it has keeps it for longer."""
    found = _offered(turn, event.session_id, event.call_id, ("", event.worker))
    if found is None:
        return
    live, call = found
    if worker_of(call) != event.worker:
        turn.save_call(live, _claimed(turn, call, event.worker))
    hold(turn, live, live.calls[call.id], event.worker, turn.now_ms + turn.policy.claim_ms)


def on_renewed(turn: Turn, event: ClaimRenewed) -> None:
    """A worker says that it still runs a call. Not worth a write: only the wait begins anew."""
    found = _offered(turn, event.session_id, event.call_id, (event.worker,))
    if found is not None:
        live, call = found
        hold(turn, live, call, event.worker, turn.now_ms + turn.policy.claim_ms)


def on_done(turn: Turn, event: NativeDone) -> None:
    """A worker hands in all outputs: they are committed, and then told to readers."""
    found = _ended(turn, event)
    if found is None:
        return
    live, call = found
    finish(turn, live, call, AttemptDone(call.ref, event.values))
    for value in event.values:
        turn.do(PublishValue(live.session.id, live.session.tenant, value))


def on_failed(turn: Turn, event: NativeFailed) -> None:
    """A worker's function failed, or what it reads or made is not fit."""
    found = _ended(turn, event)
    if found is not None:
        live, call = found
        fail(turn, live, call, replace(event.failure, session_id=live.session.id, call_id=call.id))


def give_up_claim(turn: Turn, timer_id: str) -> None:
    """Nobody claimed a call in time, or its worker has not been heard of: it fails."""
    session_id, _, call_id = timer_id.partition("/")
    live = turn.state.sessions.get(session_id)
    offer = live.offers.get(call_id) if live is not None else None
    if live is None or offer is None:
        return
    if offer.until_ms > turn.now_ms:
        turn.arm(TimerKind.CLAIM, timer_id, offer.until_ms)
    else:
        call = live.calls[call_id]
        fail(turn, live, call, _lost(turn, call, offer.worker))


def tell_stored(turn: Turn, live: LiveSession) -> None:
    """Readers may not have heard of what workers handed in before the session came back."""
    for call in live.calls.values():
        if call.by_client and call.state is CallState.DONE:
            for variable_id in call.output_ids:
                if live.variables[variable_id].state is VariableState.READY:
                    variable = live.variables[variable_id]
                    turn.do(PublishStored(live.session.id, live.session.tenant, variable))


def _offered(
    turn: Turn, session_id: str, call_id: str, workers: tuple[str, ...]
) -> tuple[LiveSession, Call] | None:
    """A call that is offered, or claimed by one of these; None: it is over, or another's."""
    live = turn.state.sessions.get(session_id)
    offer = live.offers.get(call_id) if live is not None else None
    if live is None or offer is None or offer.worker not in workers:
        return None
    return live, live.calls[call_id]


def _ended(turn: Turn, event: NativeDone | NativeFailed) -> tuple[LiveSession, Call] | None:
    """The call that a worker tells the end of, as claimed by it; None: it is over, or not its to end."""
    workers = ("", event.worker) if event.unclaimed else (event.worker,)
    found = _offered(turn, event.session_id, event.call_id, workers)
    if found is None:
        return None
    live, call = found
    return live, call if worker_of(call) == event.worker else _claimed(turn, call, event.worker)


def _claimed(turn: Turn, call: Call, worker: str) -> Call:
    return replace(
        call,
        state=CallState.RUNNING,
        engine_id=claimant(worker),
        attempt=call.attempt + 1,
        dispatched_ms=turn.now_ms,
    )


def _lost(turn: Turn, call: Call, worker: str) -> Failure:
    if worker:
        seconds = turn.policy.claim_ms / 1000
        why = f"worker {worker!r}, which had claimed it, was not heard of for {seconds:g} s; submit it again"
    else:
        seconds = (turn.now_ms - call.ready_ms) / 1000
        why = (
            f"no worker of the client claimed it within {seconds:.3g} s of its inputs being there; "
            "keep the program running that defines the function, or give the call a longer timeout_s"
        )
    return Failure.of(errors.CLIENT_LOST, why, call.session_id, call.id)
