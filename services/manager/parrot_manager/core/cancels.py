"""Cancels calls and blocks: those that were named, what depends on them, and what only they needed."""

from __future__ import annotations

from parrot_manager.core.blocks.definitions import Select
from parrot_manager.core.blocks.ending import cancel_block
from parrot_manager.core.endings import cancel
from parrot_manager.core.events import CallsCancelled
from parrot_manager.core.model import Failure
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def on_cancelled(turn: Turn, event: CallsCancelled) -> None:
    """A client cancels calls and blocks of a session."""
    live = turn.state.sessions.get(event.session_id)
    if live is None:
        return
    named = set(event.call_ids)
    for node_id in to_cancel(live, event.call_ids, subtree=event.subtree):
        why = "it was cancelled" if node_id in named else "a call it belongs with was cancelled"
        if node_id in live.blocks.open:
            cancel_block(turn, live, live.blocks.all[node_id], why)
        elif node_id in live.unfinished:
            failure = Failure.of(errors.CANCELLED, why, live.session.id, node_id)
            cancel(turn, live, live.calls[node_id], failure, "it was cancelled")
    turn.reconsidered[live.session.id] = None


def to_cancel(live: LiveSession, node_ids: tuple[str, ...], *, subtree: bool) -> list[str]:
    """The unfinished calls and open blocks that a cancel ends, in the order of their numbers."""
    named = [node_id for node_id in node_ids if _is_open(live, node_id)]
    ended = {name for name in live.graph.descendants(named, _Needs(live)) if _is_open(live, name)}
    ended |= {name for name in live.unfinished if live.calls[name].block_id in ended}
    if subtree:
        ended |= _needed_by_none(live, ended)
    return sorted(ended, key=lambda node_id: _number(live, node_id))


class _Needs:
    """Whether a consumer ends with a variable; a selection may take another."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    def __call__(self, consumer_id: str, variable_id: str) -> bool:
        block = self._live.blocks.all.get(consumer_id)
        chooses = block is not None and isinstance(block.plan, Select)
        return variable_id in self._live.open_variables and not chooses


def _is_open(live: LiveSession, node_id: str) -> bool:
    return node_id in live.unfinished or node_id in live.blocks.open


def _number(live: LiveSession, node_id: str) -> int:
    return live.calls[node_id].number if node_id in live.calls else live.blocks.all[node_id].number


def _needed_by_none(live: LiveSession, ended: set[str]) -> set[str]:
    """Producers all of whose consumers are cancelled, and that no reader asked for; and their producers."""
    gone = set(ended)
    looked = list(ended)
    while looked:
        for producer_id in live.graph.producers_of(looked.pop()):
            is_new = producer_id not in gone and _is_open(live, producer_id)
            if is_new and _is_unneeded(live, producer_id, gone):
                gone.add(producer_id)
                looked.append(producer_id)
    return gone - ended


def _is_unneeded(live: LiveSession, node_id: str, ended: set[str]) -> bool:
    if node_id in live.calls and live.calls[node_id].block_id:
        return False
    outputs = live.calls[node_id].output_ids if node_id in live.calls else live.blocks.all[node_id].output_ids
    consumers = [name for output in outputs for name in live.graph.get_consumers(output)]
    wanted = any(live.variables[output].criteria is not None for output in outputs)
    return not wanted and all(name in ended or not _is_open(live, name) for name in consumers)
