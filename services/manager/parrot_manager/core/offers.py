"""What is offered to the client's workers: a call of theirs whose inputs are there, until one claims it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from parrot_manager.core.events import TimerKind
from parrot_manager.core.model import Call, CallState
from parrot_manager.core.state import LiveSession, Offer
from parrot_manager.core.turn import Turn

CLIENT: Final = "client/"
"""What stands before a worker's name where other calls name their engine, whose ids have no slash."""


def claimant(worker: str) -> str:
    """A worker, as the engine of a call."""
    return CLIENT + worker


def worker_of(call: Call) -> str:
    """Who has claimed a call; empty: nobody."""
    return call.engine_id.removeprefix(CLIENT) if call.engine_id.startswith(CLIENT) else ""


def was_offered(call: Call) -> bool:
    """Whether workers could claim a call before it came back from the store: its condition held then."""
    return call.by_client and bool(call.ready_ms)


def offer(turn: Turn, live: LiveSession, call: Call) -> None:
    """Puts an unfinished call of the client's where it belongs, as its inputs are."""
    turn.state.fleet.count(live.session.tenant, live.session.id, call.id)
    if call.id in live.missing:
        live.put_call(replace(call, state=CallState.WAITING))
        return
    if call.id in live.offers:
        return
    worker = worker_of(call)
    if worker:
        hold(turn, live, call, worker, turn.now_ms + turn.policy.claim_ms)
        return
    ready_ms = call.ready_ms or turn.now_ms
    # Stored, so that its workers hear of it, and that its time is the same with another manager.
    turn.save_call(live, replace(call, state=CallState.READY, ready_ms=ready_ms))
    # Whoever waits for it while it comes back from the store has to find the manager that it came to.
    soonest_ms = turn.now_ms + turn.policy.claim_ms if call.ready_ms else 0
    hold(turn, live, call, "", max(ready_ms + call.native_timeout_ms, soonest_ms))


def hold(turn: Turn, live: LiveSession, call: Call, worker: str, until_ms: int) -> None:
    """Has a call wait for a worker, or for news of the one that has it."""
    live.offers[call.id] = Offer(worker, until_ms)
    turn.arm(TimerKind.CLAIM, f"{live.session.id}/{call.id}", until_ms)
