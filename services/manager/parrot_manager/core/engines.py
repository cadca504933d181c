"""What happens to engines, and to calls that find none."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.attempts import running_call
from parrot_manager.core.commands import Cancel, Probe
from parrot_manager.core.endings import fail
from parrot_manager.core.events import EngineDraining, EngineJoined, EngineLost, SlotFreed, TimerKind
from parrot_manager.core.model import EngineState, Failure
from parrot_manager.core.scheduler import ANY_MODEL, EngineLoad, QueuedCall
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_joined(turn: Turn, event: EngineJoined) -> None:
    """An engine takes calls from here on. What it still runs and nobody waits for is cancelled."""
    load = EngineLoad(event.engine, dict.fromkeys(event.claimed))
    turn.state.engines[event.engine.id] = load
    for model in (event.engine.model, ANY_MODEL):
        turn.state.unserved_since.pop(model, None)
    for ref in event.claimed:
        if running_call(turn.state, ref) is None:
            turn.do(Cancel(ref, event.engine.id, "nobody waits for it"))


def on_draining(turn: Turn, event: EngineDraining) -> None:
    """An engine finishes what it has."""
    load = turn.state.engines.get(event.engine_id)
    if load is not None and load.engine.epoch == event.epoch:
        load.engine = replace(load.engine, state=EngineState.DRAINING)
        _watch_queues(turn)


def on_lost(turn: Turn, event: EngineLost) -> None:
    """An engine is gone. What it ran may have ended on the bus: that is looked at first."""
    load = turn.state.engines.get(event.engine_id)
    if load is None or load.engine.epoch != event.epoch:
        return
    del turn.state.engines[event.engine_id]
    _watch_queues(turn)
    for ref in load.running:
        found = running_call(turn.state, ref)
        if found is not None:
            live, call = found
            turn.do(Probe(ref, live.session.tenant, call.output_ids, restarted=False))


def on_slot_freed(turn: Turn, event: SlotFreed) -> None:
    """An engine has room for one more."""
    load = turn.state.engines.get(event.engine_id)
    if load is not None:
        load.running.pop(event.ref, None)


def give_up_waiting(turn: Turn, model: str) -> None:
    """Fails the ready calls that have waited too long for any engine of their model to be there."""
    since = turn.state.unserved_since.get(model)
    if since is None or turn.state.draining:
        return
    wait_ms = turn.policy.engine_wait_ms
    due = [(max(item.ready_ms, since) + wait_ms, item) for item in turn.state.ready.of(model)]
    for at_ms, item in due:
        if at_ms <= turn.now_ms:
            _fail_unserved(turn, item)
    later = [at_ms for at_ms, _ in due if at_ms > turn.now_ms]
    if later:
        turn.arm(TimerKind.NO_ENGINE, model, min(later))
    else:
        turn.state.unserved_since.pop(model, None)


def _fail_unserved(turn: Turn, item: QueuedCall) -> None:
    live = turn.state.sessions[item.session_id]
    seconds = turn.policy.engine_wait_ms / 1000
    what = f"that serves {item.model!r}" if item.model else "at all"
    why = f"no engine {what} was there for {seconds:g} s; start one, or submit the call again later"
    fail(
        turn, live, live.calls[item.call_id], Failure.of(errors.NO_ENGINE, why, item.session_id, item.call_id)
    )


def _watch_queues(turn: Turn) -> None:
    for model in turn.state.ready.models():
        turn.watch_unserved(model)
