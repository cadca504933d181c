"""When things came, by what a manager sees. Nothing is decided by it: critical paths are made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final


class Stage(IntEnum):
    """What an attempt does on its engine; the numbers are those of `common.v1`."""

    UNKNOWN = 0
    INPUTS = 1
    QUEUE = 2
    STATIC_PREFILL = 3
    DYNAMIC_PREFILL = 4
    DECODE = 5
    TRANSFORMS = 6
    PUBLISH = 7


@dataclass(frozen=True, slots=True)
class Lap:
    """One stage of an attempt, from the end of the one before; see `common.v1.Lap`."""

    stage: Stage
    lasted_ms: float
    variable_id: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """When a call came by what the manager sees, in fractions of ms where that is known.

    The fields are those of `common.v1.Marks`.

    Attributes:
        laps: of the last attempt that ended by itself.
    """

    entered_ms: float = 0.0
    first_dispatched_ms: float = 0.0
    sent_ms: float = 0.0
    told_ms: float = 0.0
    laps: tuple[Lap, ...] = ()
    settled_ms: float = 0.0

    def of_attempt(self, found: Marks) -> Marks:
        """The same call's, with those of another attempt."""
        return replace(self, sent_ms=found.sent_ms, told_ms=found.told_ms, laps=found.laps)


@dataclass(frozen=True, slots=True)
class SessionMarks:
    """When a session came by what the manager sees; the fields are those of `manager.v1.SessionMarks`.

    Attributes:
        opened_ms: it was stored.
        settled_ms: the last of what ended before it ended was stored.
        closing_ms: its client asked to end it.
    """

    opened_ms: float = 0.0
    settled_ms: float = 0.0
    closing_ms: float = 0.0


NO_MARKS: Final = Marks()
NO_SESSION_MARKS: Final = SessionMarks()
