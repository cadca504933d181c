"""Where a call without an attempt is: waiting for inputs, or with the fleet, which says where it goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from parrot_manager.core.commands import Dispatch
from parrot_manager.core.marks import NO_MARKS
from parrot_manager.core.model import (
    NO_USAGE,
    Attempt,
    AttemptState,
    Call,
    CallState,
    Variable,
    VariableState,
)
from parrot_manager.core.offers import offer
from parrot_manager.core.scheduling import Pending, Placement, QueuedCall, describe
from parrot_manager.core.shapes import InputPiece
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn, made_by

LEADING_INPUTS: Final = 4
"""The inputs of a prompt whose coming is told to the fleet before the last one came: they decide with whom
a call shares a prefix."""


PENDING_INPUTS: Final = 32
"""A call that waits for more is not sent ahead: the last of them is far away."""


def settle(turn: Turn, live: LiveSession, call: Call) -> None:
    """Puts an unfinished call that has no attempt where it belongs, as its inputs are."""
    if live.backing_off(call.id) or call.id in live.idle:
        return
    if call.by_client:
        offer(turn, live, call)
    elif call.id in live.missing:
        live.put_call(replace(call, state=CallState.WAITING))
        turn.state.fleet.expect(_described(turn, live, live.calls[call.id]))
        stream_ahead(turn, live, live.calls[call.id])
    else:
        _queue(turn, live, call)


def unqueue(turn: Turn, live: LiveSession, call_id: str) -> None:
    """Takes a call back from the fleet, if it is there."""
    if live.queued.pop(call_id, None) is not None:
        turn.state.fleet.withdraw(live.session.id, call_id)


def advance_consumers(turn: Turn, live: LiveSession, variable_id: str) -> None:
    """A variable became ready: counts it off, and lets go on whoever waited for it alone."""
    for call_id in live.graph.get_consumers(variable_id):
        if call_id in live.missing:
            live.missing[call_id] -= 1
            count_off(turn, live, live.calls[call_id], variable_id)


def count_off(turn: Turn, live: LiveSession, call: Call, variable_id: str) -> None:
    """A call lacks one thing less; how many are left is counted already."""
    complete = not live.missing[call.id]
    if complete:
        del live.missing[call.id]
    if call.id in live.attempts:
        if complete:
            _all_came(turn, live, call)
    elif complete or (_leads(call, variable_id) and call.id not in live.idle):
        settle(turn, live, call)


def stream_ahead(turn: Turn, live: LiveSession, call: Call) -> None:
    """Offers a waiting call to the fleet if all it lacks is being made, and takes it back if not."""
    if not turn.state.fleet.policy.streaming_edges or call.id in live.attempts or call.native is not None:
        return
    pending = _being_made(live, call)
    known = live.queued.get(call.id)
    if not pending:
        unqueue(turn, live, call.id)
    elif known is None or known.pending != pending:
        _offer(turn, live, call, pending)


def reconsider_consumers(turn: Turn, live: LiveSession, call: Call) -> None:
    """A call makes its outputs now, or no more: who waits for them may be sent ahead, or not."""
    if not turn.state.fleet.policy.streaming_edges:
        return
    for variable_id in call.output_ids:
        for consumer_id in live.graph.get_consumers(variable_id):
            if consumer_id in live.missing and not live.backing_off(consumer_id):
                stream_ahead(turn, live, live.calls[consumer_id])


def tell_again(turn: Turn, live: LiveSession, call: Call) -> None:
    """A call is run for something else than it was."""
    known = live.queued.get(call.id)
    if known is not None:
        live.queued[call.id] = replace(known, objective=call.objective)
        turn.state.fleet.ready(live.queued[call.id])
    elif call.id in live.missing and call.id not in live.attempts and not call.by_client:
        turn.state.fleet.expect(_described(turn, live, call))


def place(turn: Turn) -> None:
    """Dispatches what the engines have room for."""
    if turn.state.draining:
        return
    for placement in turn.state.fleet.place(turn.now_ms):
        _dispatch(turn, placement)


def adopt(turn: Turn, live: LiveSession, call: Call, attempt: Attempt) -> None:
    """An engine runs an attempt that was dispatched before this manager knew of it."""
    turn.drop_orphan(attempt)
    turn.state.fleet.adopt(attempt.engine_id, attempt.ref, _described(turn, live, call, _awaited(live, call)))
    if call.id not in live.missing:
        reconsider_consumers(turn, live, call)


def _queue(turn: Turn, live: LiveSession, call: Call) -> None:
    live.put_call(replace(call, state=CallState.READY, ready_ms=call.ready_ms or turn.now_ms))
    _offer(turn, live, live.calls[call.id], ())
    turn.watch_unserved(call.model)


def _offer(turn: Turn, live: LiveSession, call: Call, pending: tuple[Pending, ...]) -> None:
    live.queued[call.id] = _described(turn, live, call, pending)
    turn.state.fleet.ready(live.queued[call.id])


def _described(turn: Turn, live: LiveSession, call: Call, pending: tuple[Pending, ...] = ()) -> QueuedCall:
    known, trouble = live.queued.get(call.id), live.troubles.get(call.id)
    since_ms = known.ready_ms if known is not None and bool(known.pending) == bool(pending) else turn.now_ms
    avoid = trouble.avoid if trouble is not None else frozenset[str]()
    return describe(live.session, call, live.variables, now_ms=since_ms, pending=pending, avoid=avoid)


def _being_made(live: LiveSession, call: Call) -> tuple[Pending, ...]:
    """What a call lacks, with the attempts that make it; nothing when something of it isn't being made."""
    missing = live.missing.get(call.id, 0)
    if missing > PENDING_INPUTS:
        return ()
    lacking = live.open_inputs(call)
    if missing != len(lacking):
        return ()
    pending: list[Pending] = []
    for variable_id in lacking:
        producer_id = live.graph.get_producer(variable_id)
        attempt = live.attempts.get(producer_id)
        if attempt is None or producer_id in live.missing:
            return ()
        pending.append(Pending(variable_id, attempt.ref))
    return tuple(pending)


def _awaited(live: LiveSession, call: Call) -> tuple[Pending, ...]:
    """What an attempt that was sent ahead still lacks, whether that is being made just now or not."""
    if call.id not in live.missing:
        return ()
    producers = {name: live.calls.get(live.graph.get_producer(name)) for name in live.open_inputs(call)}
    return tuple(
        Pending(name, producer.ref if producer is not None else call.ref)
        for name, producer in producers.items()
    )


def _leads(call: Call, variable_id: str) -> bool:
    inputs = (piece.variable_id for piece in call.shape if isinstance(piece, InputPiece))
    return variable_id in islice(inputs, LEADING_INPUTS)


def _all_came(turn: Turn, live: LiveSession, call: Call) -> None:
    """A call that was sent ahead has all its inputs: it will generate now."""
    live.put_call(replace(call, ready_ms=call.ready_ms or turn.now_ms))
    turn.state.fleet.arrived(live.attempts[call.id].ref)
    reconsider_consumers(turn, live, call)


def _dispatch(turn: Turn, placement: Placement) -> None:
    live = turn.state.sessions[placement.call.session_id]
    del live.queued[placement.call.call_id]
    ready = live.calls[placement.call.call_id]
    call = replace(
        ready,
        state=CallState.DISPATCHED,
        engine_id=placement.engine_id,
        attempt=ready.attempt + 1,
        dispatched_ms=turn.now_ms,
        placement=placement.reason,
        # What an attempt before it used is not what this one uses.
        usage=NO_USAGE,
        marks=replace(
            ready.marks.of_attempt(NO_MARKS),
            first_dispatched_ms=ready.marks.first_dispatched_ms or float(turn.now_ms),
        ),
    )
    attempt = Attempt(
        call.ref, placement.engine_id, AttemptState.RUNNING, turn.now_ms, reason=placement.reason
    )
    turn.start_attempt(live, attempt)
    turn.state.fleet.dispatched(placement, call.ref, turn.now_ms)
    turn.save_call(live, call)
    turn.do(_program(turn, live, call, placement))
    if call.id not in live.missing:
        reconsider_consumers(turn, live, call)


def _program(turn: Turn, live: LiveSession, call: Call, placement: Placement) -> Dispatch:
    engine = turn.state.engines[placement.engine_id].engine
    trouble = live.troubles.get(call.id)
    made = [live.variables[name] for name in call.output_ids if name not in live.open_variables]
    return Dispatch(
        live.session,
        call,
        engine.id,
        engine.epoch,
        tuple(live.variables[name] for name in call.input_ids),
        republish=_stale_values(turn, live, call),
        pending=tuple(item for item in placement.pending if item[0] in live.open_variables),
        resume=trouble.streamed if trouble is not None else (),
        made=(*made, *(trouble.made if trouble is not None else ())),
        shares=placement.shares,
        priority=placement.priority,
        expected_output_tokens=placement.expected_output_tokens,
        step_ms=placement.step_ms,
        beside_share=placement.beside_share,
        reason=placement.reason,
    )


def _stale_values(turn: Turn, live: LiveSession, call: Call) -> tuple[tuple[Variable, int], ...]:
    """What the call reads and the bus may have lost; it counts as published from here on."""
    oldest_ms = turn.now_ms - turn.policy.republish_after_ms
    read = map(live.variables.__getitem__, (*call.input_ids, *call.output_ids))
    stale = [
        variable
        for variable in read
        if variable.state is VariableState.READY
        and (call.value_retries or not variable.published_ms or variable.published_ms <= oldest_ms)
    ]
    for variable in stale:
        live.put_variable(replace(variable, published_ms=turn.now_ms))
    return tuple((variable, made_by(live, variable)) for variable in stale)
