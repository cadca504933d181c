"""What an engine is told of a call's place among those it has: lower goes first."""

from __future__ import annotations

from typing import Final

from parrot_manager.core.criteria import ObjectiveKind
from parrot_manager.core.scheduling.calls import QueuedCall
from parrot_manager.core.scheduling.policies import SchedulingPolicy

_UNIT_MS: Final = 100
_SPAN: Final = 1 << 28


def priority(call: QueuedCall, policy: SchedulingPolicy) -> int:
    """By class and then by latest start, in tenths of a second; it wraps around after ten months."""
    objective = call.objective
    if objective is None or not policy.objectives:
        return 0
    patient = objective.kind is ObjectiveKind.THROUGHPUT
    return patient * _SPAN + objective.latest_start_ms // _UNIT_MS % _SPAN
