"""What a reader wants of an output: soon, or at little cost, or by a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal


class PerformanceCriteria(Enum):
    """What is wanted of an output."""

    LATENCY = 0
    """The whole of it soon."""
    THROUGHPUT = 1
    """Sometime, at little cost: it runs in large batches, behind what others wait for."""
    TTFT = 2
    """Its first token soon."""
    TPOT = 3
    """Each token soon after the one before; the server treats it as LATENCY."""


LATENCY: Final = PerformanceCriteria.LATENCY
THROUGHPUT: Final = PerformanceCriteria.THROUGHPUT
TTFT: Final = PerformanceCriteria.TTFT
TPOT: Final = PerformanceCriteria.TPOT


@dataclass(frozen=True, slots=True)
class Deadline:
    """The whole of it by a time.

    Attributes:
        within_s: seconds from when it is asked for, or, as a session's criteria, from its opening.

    Raises:
        ValueError: it is not more than 0, or not finite.
    """

    within_s: float

    def __post_init__(self) -> None:
        if not (0 < self.within_s < math.inf):
            raise ValueError(f"a deadline is within more than 0 seconds, not {self.within_s}")


Criteria = PerformanceCriteria | Deadline | Literal["latency", "throughput", "ttft", "tpot"]
"""What is wanted of an output; a name stands for the member of `PerformanceCriteria`."""

_KINDS: Final = {LATENCY: "latency", THROUGHPUT: "throughput", TTFT: "ttft", TPOT: "latency"}
_NAMES: Final = {criteria.name: criteria for criteria in PerformanceCriteria}


def to_wire(criteria: Criteria | None) -> dict[str, Any]:
    """The criteria as the server takes them: `kind`, and `deadline_unix_ms`; nothing for None.

    Raises:
        ValueError: it is a text that names none.
        TypeError: it is of another type.
    """
    if criteria is None:
        return {}
    if isinstance(criteria, Deadline):
        return {"kind": "deadline", "deadline_unix_ms": round((time.time() + criteria.within_s) * 1000)}
    if isinstance(criteria, str):
        found = _NAMES.get(criteria.upper())
        if found is None:
            raise ValueError(f"criteria is {criteria!r}; it is one of latency, throughput, ttft and tpot")
        criteria = found
    if not isinstance(criteria, PerformanceCriteria):
        raise TypeError(
            f"criteria is a P.PerformanceCriteria or a P.Deadline, not {type(criteria).__name__}"
            + ("; write timeout=... for a time to wait" if isinstance(criteria, (int, float)) else "")
        )
    return {"kind": _KINDS[criteria]}


def to_query(criteria: Criteria | None) -> dict[str, Any]:
    """The same as parameters of a request that reads a variable.

    Raises:
        As `to_wire`.
    """
    wire = to_wire(criteria)
    return {"criteria" if name == "kind" else name: value for name, value in wire.items()}
