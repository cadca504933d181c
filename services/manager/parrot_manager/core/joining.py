"""How calls come to run: at once, or when somebody wants what they lead to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parrot_manager.core.blocks.skips import is_skipped
from parrot_manager.core.criteria import LATENCY, stricter
from parrot_manager.core.endings import end_reader
from parrot_manager.core.events import VariablesWanted, Wanted
from parrot_manager.core.model import Call, VariableState
from parrot_manager.core.offers import was_offered, worker_of
from parrot_manager.core.queueing import settle
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn


def join(turn: Turn, live: LiveSession, calls: Iterable[Call]) -> None:
    """Calls take their place in their session; in a lazy one they wait until they are wanted."""
    turn.reconsidered[live.session.id] = None
    for call in calls:
        # One that a worker has claimed goes on, wanted or not.
        if live.session.lazy and not worker_of(call):
            live.idle[call.id] = None
            turn.state.fleet.count(live.session.tenant, live.session.id, call.id)
        else:
            start(turn, live, call.id)


def start(turn: Turn, live: LiveSession, call_id: str) -> None:
    """Lets an unfinished call wait, queues it, or ends it with an input that has no value."""
    call = live.calls[call_id]
    if call.state.ended:
        return
    needed = [live.variables[name] for name in call.needed_ids]
    lost = sorted((v for v in needed if v.state > VariableState.READY), key=is_skipped)
    if lost:
        end_reader(turn, live, call, lost[0])
        return
    missing = len(live.open_inputs(call))
    if call.when is not None and not was_offered(call):
        live.blocks.undecided[call.id] = None
        missing += 1
        turn.look(live, call.id)
    if missing:
        live.missing[call.id] = missing
    settle(turn, live, call)


def on_wanted(turn: Turn, event: VariablesWanted) -> None:
    """Somebody reads variables: what makes them hastens, or begins."""
    live = turn.state.sessions.get(event.session_id)
    if live is not None:
        want(turn, live, event.wanted)


def want(turn: Turn, live: LiveSession, wanted: Iterable[Wanted]) -> None:
    """Notes what readers want; what was wanted more urgently before stays so."""
    named: list[str] = []
    for wish in wanted:
        variable = live.variables.get(wish.variable_id)
        if variable is None or variable.state.ended:
            continue
        named.append(variable.id)
        default = live.session.criteria or LATENCY if live.session.lazy else None
        criteria = stricter(variable.criteria, wish.criteria) or default
        if criteria != variable.criteria:
            turn.save_variable(live, replace(variable, criteria=criteria))
            turn.reconsidered[live.session.id] = None
    activate(turn, live, named)


def activate(turn: Turn, live: LiveSession, variable_ids: Iterable[str]) -> None:
    """Starts the idle calls and blocks that lead to these variables, the first of them first."""
    producers = filter(None, map(live.graph.get_producer, variable_ids))
    _start_idle(turn, live, _idle_ancestors(live, producers))


def activate_restored(turn: Turn, live: LiveSession) -> None:
    """Starts what leads to the variables that were wanted before, and to what runs.

    Whoever wanted what runs may have what they wanted, or a skip: it goes on all the same, as it would have.
    """
    wanted = [name for name in live.open_variables if live.variables[name].criteria is not None]
    producers = filter(None, map(live.graph.get_producer, wanted))
    nodes = (*live.unfinished, *(block.id for block in live.blocks.opened()))
    going = [node_id for node_id in nodes if not _is_idle(live, node_id)]
    _start_idle(turn, live, live.graph.ancestors([*producers, *going]))


def _start_idle(turn: Turn, live: LiveSession, wanted: set[str]) -> None:
    for call_id in sorted(wanted & live.idle.keys(), key=lambda name: live.calls[name].number):
        # It is not idle any more if one that was started before it has ended it.
        if call_id in live.idle:
            del live.idle[call_id]
            start(turn, live, call_id)
    for block_id in [name for name in live.blocks.idle if name in wanted]:
        del live.blocks.idle[block_id]
        turn.look(live, block_id)


def _idle_ancestors(live: LiveSession, node_ids: Iterable[str]) -> set[str]:
    """These and all that is idle of what they wait for; what was started has no idle ancestors."""
    found: set[str] = set()
    looked = [node_id for node_id in node_ids if _is_idle(live, node_id)]
    while looked:
        node_id = looked.pop()
        if node_id not in found:
            found.add(node_id)
            looked += [name for name in live.graph.producers_of(node_id) if _is_idle(live, name)]
    return found


def _is_idle(live: LiveSession, node_id: str) -> bool:
    return node_id in live.idle or node_id in live.blocks.idle
