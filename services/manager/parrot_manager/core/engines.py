"""What happens to engines, and to calls that find none."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core.attempts import look, running_call
from parrot_manager.core.commands import Cancel
from parrot_manager.core.endings import fail
from parrot_manager.core.events import (
    ContextsChanged,
    EngineAdopted,
    EngineDraining,
    EngineJoined,
    EngineLost,
    EngineReported,
    SlotFreed,
    TimerKind,
)
from parrot_manager.core.model import EngineState, Failure, Ref
from parrot_manager.core.queueing import adopt
from parrot_manager.core.scheduling import EngineLoad, QueuedCall, models_taken
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_joined(turn: Turn, event: EngineJoined) -> None:
    """An engine takes calls from here on. What it still runs and nobody waits for is cancelled.

    One that is here already is the same process on a new stream: what it does not claim it does not run.
    """
    engine_id = event.engine.id
    known = turn.state.fleet.leave(engine_id) if engine_id in turn.state.engines else ()
    asked = [*known, *turn.state.orphans.get(engine_id, ())]
    turn.state.fleet.join(event.engine, event.claimed, event.contexts, turn.now_ms)
    for model in models_taken(event.engine.model):
        turn.state.unserved_since.pop(model, None)
    for ref in event.claimed:
        if not _adopt(turn, engine_id, ref):
            turn.do(Cancel(ref, engine_id, "nobody waits for it"))
            # Its place is not kept: where another manager waits for it, nobody here would hear of its end.
            turn.state.fleet.freed(engine_id, ref)
    for ref in asked:
        if ref not in event.claimed:
            look(turn, ref, restarted=True)
    # It may have been another model's before.
    _watch_queues(turn)


def on_adopted(turn: Turn, event: EngineAdopted) -> None:
    """An engine says which attempts of a taken-over shard it runs; the others left their traces."""
    if _attached(turn, event.engine_id, event.epoch) is None:
        return
    for ref in event.running:
        _adopt(turn, event.engine_id, ref)
    for ref in event.unknown:
        if ref in turn.state.orphans.get(event.engine_id, {}):
            look(turn, ref, restarted=True)


def on_draining(turn: Turn, event: EngineDraining) -> None:
    """An engine finishes what it has."""
    load = _attached(turn, event.engine_id, event.epoch)
    if load is not None:
        turn.state.fleet.update(replace(load.engine, state=EngineState.DRAINING))
        _watch_queues(turn)


def on_reported(turn: Turn, event: EngineReported) -> None:
    """An engine said how loaded it is."""
    if _attached(turn, event.engine_id, event.epoch) is not None:
        turn.state.fleet.report(event.engine_id, event.load)


def on_contexts(turn: Turn, event: ContextsChanged) -> None:
    """Shared contexts of an engine came, changed, or are gone."""
    if _attached(turn, event.engine_id, event.epoch) is not None:
        turn.state.fleet.contexts_changed(event.engine_id, event.contexts, event.gone)


def on_lost(turn: Turn, event: EngineLost) -> None:
    """An engine is gone. What it ran may have ended on the bus: that is looked at first."""
    if _attached(turn, event.engine_id, event.epoch) is not None:
        _leave(turn, event.engine_id)
        _watch_queues(turn)


def on_slot_freed(turn: Turn, event: SlotFreed) -> None:
    """An engine has room for one more, and something was learned if it was done."""
    if event.usage is not None:
        turn.state.fleet.finished(event.ref, event.usage, event.timings, turn.now_ms)
    turn.state.fleet.freed(event.engine_id, event.ref)
    live = turn.state.sessions.get(event.ref.session_id)
    if live is not None:
        live.stopping.pop(event.ref, None)


def give_up_adoption(turn: Turn, session_id: str) -> None:
    """Engines that have not claimed a session's attempts by now may not come at all."""
    live = turn.state.sessions.get(session_id)
    for attempt in list(live.attempts.values()) if live is not None else ():
        if attempt.ref in turn.state.orphans.get(attempt.engine_id, {}):
            look(turn, attempt.ref, restarted=True, fence=True)


def give_up_waiting(turn: Turn, model: str) -> None:
    """Fails the ready calls that have waited too long for any engine of their model to be there."""
    since = turn.state.unserved_since.get(model)
    if since is None or turn.state.draining:
        return
    wait_ms = turn.policy.engine_wait_ms
    waiting = [item for item in turn.state.fleet.queued(model) if not item.pending]
    due = [(max(item.ready_ms, since) + wait_ms, item) for item in waiting]
    for at_ms, item in due:
        if at_ms <= turn.now_ms:
            _fail_unserved(turn, item)
    later = [at_ms for at_ms, _ in due if at_ms > turn.now_ms]
    if later:
        turn.arm(TimerKind.NO_ENGINE, model, min(later))
    else:
        turn.state.unserved_since.pop(model, None)


def _attached(turn: Turn, engine_id: str, epoch: int) -> EngineLoad | None:
    """The engine, unless it has attached anew or is gone."""
    load = turn.state.engines.get(engine_id)
    return load if load is not None and load.engine.epoch == epoch else None


def _adopt(turn: Turn, engine_id: str, ref: Ref) -> bool:
    """An engine runs an attempt; False when nobody waits for that.

    A manager that has lost the shard without knowing may have sent an attempt of that number elsewhere.
    """
    found = running_call(turn.state, ref)
    if found is None or found[0].attempts[ref.call_id].engine_id != engine_id:
        return False
    live, call = found
    adopt(turn, live, call, live.attempts[call.id])
    return True


def _leave(turn: Turn, engine_id: str) -> None:
    """What an engine ran, or was asked about, will not be reported."""
    refs = dict.fromkeys(turn.state.fleet.leave(engine_id))
    for ref in refs | turn.state.orphans.get(engine_id, {}):
        live = turn.state.sessions.get(ref.session_id)
        if live is not None:
            live.stopping.pop(ref, None)
        look(turn, ref, fence=True)


def _fail_unserved(turn: Turn, item: QueuedCall) -> None:
    live = turn.state.sessions[item.session_id]
    if item.call_id not in live.queued:
        # It failed with another that was due.
        return
    seconds = turn.policy.engine_wait_ms / 1000
    what = f"that serves {item.model!r}" if item.model else "at all"
    why = f"no engine {what} was there for {seconds:g} s; start one, or submit the call again later"
    fail(
        turn, live, live.calls[item.call_id], Failure.of(errors.NO_ENGINE, why, item.session_id, item.call_id)
    )


def _watch_queues(turn: Turn) -> None:
    for model in turn.state.fleet.asked_models():
        turn.watch_unserved(model)
