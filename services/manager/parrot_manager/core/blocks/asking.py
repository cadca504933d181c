"""Questions about values: who asks, and what becomes of the answers about calls."""

from __future__ import annotations

from parrot_manager.core.blocks.questions import Answer, Holds, Question, Unanswerable, Verdict
from parrot_manager.core.blocks.skips import skipped_itself
from parrot_manager.core.commands import ReadValues
from parrot_manager.core.endings import fail, skip
from parrot_manager.core.model import Call, Failure, VariableState
from parrot_manager.core.queueing import count_off, settle
from parrot_manager.core.state import LiveSession
from parrot_manager.core.turn import Turn
from parrot_runtime import errors


def ask(turn: Turn, live: LiveSession, owner_id: str, *questions: Question) -> None:
    """Has questions answered for a call or block."""
    asked = live.blocks.ask(owner_id, questions)
    turn.do(ReadValues(live.session.id, owner_id, asked.ask, questions))


def look_at_call(turn: Turn, live: LiveSession, call: Call) -> None:
    """Asks whether a call's condition holds, once its value is there."""
    if call.id in live.idle or call.id not in live.blocks.undecided or call.id in live.blocks.asked:
        return
    if call.when is not None and live.variables[call.when.variable_id].state is VariableState.READY:
        ask(turn, live, call.id, Holds(call.when))


def decide_call(turn: Turn, live: LiveSession, call: Call, answer: Answer) -> None:
    """A call's condition holds, and it goes on; or it does not, and the call is skipped."""
    live.blocks.drop(call.id)
    if isinstance(answer, Verdict) and answer.holds:
        live.missing[call.id] -= 1
        count_off(turn, live, call, call.when.variable_id if call.when is not None else "")
        if call.id in live.missing:
            settle(turn, live, live.calls[call.id])
    elif isinstance(answer, Verdict):
        skip(turn, live, call, skipped_itself(live.session.id, call.id))
    else:
        why = answer.why if isinstance(answer, Unanswerable) else "there is no answer"
        message = f"its condition can't be decided: {why}"
        fail(turn, live, call, Failure.of(errors.TRANSFORM_FAILED, message, live.session.id, call.id))
