"""When objectives are deduced anew: as the graph grows, but not with each of a thousand calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from parrot_manager.core.events import TimerKind
from parrot_manager.core.objectives import deduce
from parrot_manager.core.queueing import tell_again
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn

FEW_CALLS: Final = 64
"""Of so many, they are deduced at once."""
GROWTH: Final = 1.125
"""Of more, when there are so many times as many: the cost a call is then bounded, however they come."""
LATER_MS: Final = 50
"""Otherwise so much later, or of thousands as many tenths of a ms as there are calls: a share of the time."""
MOST_CALLS: Final = 20_000
"""Of more, they are not deduced: each call is then as urgent as its session is old."""


def deduce_objectives(turn: Turn) -> None:
    """Says anew what calls and blocks are run for, where the graph changed or what is wanted of it."""
    for session_id in turn.reconsidered:
        live = turn.state.sessions[session_id]
        if len(live.unfinished) > MOST_CALLS:
            continue
        if len(live.unfinished) <= FEW_CALLS or len(live.unfinished) >= live.deduced * GROWTH:
            _deduce(turn, live)
        elif not live.stale:
            live.stale = True
            later_ms = max(LATER_MS, len(live.unfinished) // 10)
            turn.arm(TimerKind.OBJECTIVES, session_id, turn.now_ms + later_ms)


def on_time(turn: Turn, session_id: str) -> None:
    """What has changed in a session of late is looked at together."""
    live = turn.state.sessions.get(session_id)
    if live is not None and live.stale:
        live.deduced = 0
        turn.reconsidered[session_id] = None


def _deduce(turn: Turn, live: LiveSession) -> None:
    live.deduced, live.stale = len(live.unfinished), False
    fleet = turn.state.fleet
    found = deduce(live, fleet.estimates, turn.now_ms, fleet.policy.leeway)
    live.blocks.objectives = {block_id: found.pop(block_id) for block_id in live.blocks.open}
    for call_id, objective in found.items():
        call = live.calls[call_id]
        if call.objective != objective:
            live.put_call(replace(call, objective=objective))
            tell_again(turn, live, live.calls[call_id])
