"""What readers want of outputs, and what that makes of calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ObjectiveKind(IntEnum):
    """The numbers of `manager.v1.ObjectiveKind`."""

    LATENCY = 1
    THROUGHPUT = 2
    DEADLINE = 3
    TTFT = 4


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a reader wants of an output. `deadline_ms`: Unix milliseconds; for deadlines only."""

    kind: ObjectiveKind
    deadline_ms: int = 0

    @property
    def urgency(self) -> tuple[int, int]:
        """Sorts from what can wait to what can't; of two deadlines the earlier one is later here."""
        return _URGENCY[self.kind], -self.deadline_ms


_URGENCY: Final = {
    ObjectiveKind.THROUGHPUT: 0,
    ObjectiveKind.DEADLINE: 1,
    ObjectiveKind.TTFT: 2,
    ObjectiveKind.LATENCY: 3,
}
LATENCY: Final = Criteria(ObjectiveKind.LATENCY)


def stricter(first: Criteria | None, second: Criteria | None) -> Criteria | None:
    """The one of two readers' wishes that binds; None: nobody said."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda wish: wish.urgency)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a call is run for, deduced from its graph; never stored.

    Attributes:
        group: the calls that finish together, by a name of the session's; empty: none.
        reason: for people, such as "group of 24 ahead of c-25 (final)".
        latest_finish_ms: when it should be done, so that the application's end comes in time.
        latest_start_ms: `latest_finish_ms` less what it will take; what the queue is ordered by.
        remaining_ms: from its start to the application's end, as predicted.
        end_ms: when the output it is run for should be there.
        stage: calls between it and the output it is run for; 0: it makes that itself.
        ideal_ms: what the whole of it would take, from its beginning to that output, alone on an idle fleet.
        members: of its group.
    """

    kind: ObjectiveKind
    group: str = ""
    reason: str = ""
    latest_finish_ms: int = 0
    latest_start_ms: int = 0
    remaining_ms: int = 0
    end_ms: int = 0
    stage: int = 0
    ideal_ms: int = 0
    members: int = 1
