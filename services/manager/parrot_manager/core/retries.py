"""Which calls that were not done are tried again, where, and after how long."""

from __future__ import annotations

from typing import Final

from parrot_manager.core.model import Call, Failure
from parrot_manager.core.scheduling import EngineLoad
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors

PASSING: Final = frozenset({errors.ENGINE_LOST.type, errors.UNAVAILABLE.type, errors.INTERRUPTED.type})
"""What may be otherwise in a moment, on any engine; the caller's mistakes are none of it."""


def may_retry(turn: Turn, live: LiveSession, call: Call, failure: Failure) -> bool:
    """Whether a call that failed like this is tried again."""
    if failure.type == errors.VALUE_UNAVAILABLE.type:
        return call.value_retries < turn.policy.value_retries
    if call.losses >= turn.policy.max_losses:
        return False
    if failure.type == errors.ENGINE_ERROR.type:
        return any(_could_run(load, call) for load in _others(turn, live, call))
    return failure.type in PASSING


def delay_ms(turn: Turn, losses: int) -> int:
    """How long a call waits that was lost so many times: at first not at all."""
    if losses <= 1:
        return 0
    return min(turn.policy.longest_retry_ms, turn.policy.retry_ms << min(losses - 2, 20))


def _others(turn: Turn, live: LiveSession, call: Call) -> list[EngineLoad]:
    """The engines the call has not failed on: an engine that could not run it is not asked again."""
    avoid = live.trouble(call.id).avoid | {live.attempts[call.id].engine_id}
    return [load for name, load in turn.state.engines.items() if name not in avoid]


def _could_run(load: EngineLoad, call: Call) -> bool:
    return load.serves(call.model)
