"""The place of a call in the queue."""

from __future__ import annotations

from typing import Final

from parrot_manager.core.criteria import ObjectiveKind
from parrot_manager.core.scheduling.calls import QueuedCall
from parrot_manager.core.scheduling.policies import SchedulingPolicy
from parrot_manager.core.scheduling.queue import Key

EQUAL_SLACK_MS: Final = 500
"""Slack that differs by less counts as equal: estimates are no better than that."""


class Rank:
    """Whether a call is patient, and its key among its like."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def __call__(self, call: QueuedCall, begun: bool) -> tuple[bool, Key]:
        """`begun`: part of its group was placed."""
        objective = call.objective if self._policy.objectives else None
        if objective is None:
            first = 0.0 if self._policy.app_order else float(call.ready_ms)
            return False, (not begun, first, 0.0, *_by_session(call))
        patient = objective.kind is ObjectiveKind.THROUGHPUT
        slack = float(objective.latest_start_ms // EQUAL_SLACK_MS)
        then = float(objective.remaining_ms if self._policy.app_order else call.ready_ms)
        return patient, (not begun, slack, then, *_by_session(call))


def _by_session(call: QueuedCall) -> tuple[int, str, int]:
    return call.session_created_ms, call.session_id, call.order
