"""How much a call minds being held up: from its objective, now."""

from __future__ import annotations

from typing import Final

from parrot_manager.core.criteria import Objective, ObjectiveKind
from parrot_manager.core.scheduling.calls import QueuedCall

REFERENCE_MS: Final = 3_000
"""Of an application that takes so long, or less, a lost ms weighs 1; of a longer one it is a smaller part."""
MEMBERS: Final = 0.75
"""The members of a group share its weight: all lose a ms, and the group loses one. Not quite in equal parts,
since the slowest decides."""
LATE: Final = 0.25
"""What is left of the weight when the application can't end in time any more."""
PATIENT: Final = 0.05
"""The same for throughput, and for a deadline that is far."""
HOPELESS: Final = 2.5
"""An application that would be later than so many times its ideal time is given up, as far as order goes."""
LEAST: Final = 0.005


def is_patient(call: QueuedCall, now_ms: int) -> bool:
    """Whether a call keeps away from those that are not: run for throughput, with slack left."""
    objective = call.objective
    if objective is None or objective.kind is not ObjectiveKind.THROUGHPUT:
        return False
    return not is_overdue(call, now_ms)


def is_overdue(call: QueuedCall, now_ms: int) -> bool:
    """Whether a call's slack is gone."""
    return call.objective is not None and call.objective.latest_start_ms <= now_ms


def is_late(call: QueuedCall, now_ms: int) -> bool:
    """Whether what a call is run for would not be there in time even if it began now and all went well."""
    objective = call.objective
    return objective is not None and now_ms + objective.remaining_ms > objective.end_ms > 0


def is_hopeless(call: QueuedCall, now_ms: int) -> bool:
    """Whether it would be so late that others, who can still make it, should go before it.

    A little late is not: who is a little late first is what keeps the worst stretch small.
    """
    objective = call.objective
    if objective is None or not objective.end_ms:
        return False
    late_ms = now_ms + objective.remaining_ms - objective.end_ms
    return late_ms > HOPELESS * max(objective.ideal_ms, objective.remaining_ms)


def weight(call: QueuedCall, now_ms: int) -> float:
    """What a ms weighs that a call loses, as a part of what its application takes."""
    objective = call.objective
    if objective is None:
        return 1.0
    shared = float(objective.members**MEMBERS)
    share = min(1.0, REFERENCE_MS / max(1, objective.ideal_ms)) / shared
    return max(LEAST, share * _patience(objective, call, now_ms))


def _patience(objective: Objective, call: QueuedCall, now_ms: int) -> float:
    if objective.kind is ObjectiveKind.THROUGHPUT:
        return PATIENT
    if objective.kind is ObjectiveKind.DEADLINE and not is_overdue(call, now_ms):
        return PATIENT
    return LATE if is_late(call, now_ms) else 1.0
