"""What an engine is told of a call's place among those it has."""

from __future__ import annotations

from typing import Final

from parrot_manager.core.criteria import ObjectiveKind
from parrot_manager.core.scheduling.calls import QueuedCall
from parrot_manager.core.scheduling.policies import SchedulingPolicy

_UNIT_MS: Final = 100
_SPAN: Final = 1 << 28


def priority(call: QueuedCall, policy: SchedulingPolicy) -> int:
    """Lower goes first: by class, then by latest start, in tenths of a second, anew after ten months."""
    objective = call.objective
    if objective is None or not policy.objectives:
        return 0
    patient = objective.kind is ObjectiveKind.THROUGHPUT
    return patient * _SPAN + objective.latest_start_ms // _UNIT_MS % _SPAN


def beside_share(call: QueuedCall, policy: SchedulingPolicy) -> float:
    """By what share prompts that can wait may lengthen the steps of its output; 0: as they like."""
    objective = call.objective
    hurried = objective is not None and objective.kind is ObjectiveKind.LATENCY
    return policy.beside_share if hurried and policy.objectives else 0.0


def step_ms(call: QueuedCall, policy: SchedulingPolicy) -> int:
    """How long a step may take while the call's output is written; 0: as long as it likes."""
    objective = call.objective
    if objective is None or objective.kind is ObjectiveKind.THROUGHPUT or not policy.objectives:
        return 0
    return policy.step_ms
