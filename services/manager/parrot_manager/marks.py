"""When what only the shell sees happened, until the machine keeps it: programs sent, reports, commits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from parrot_manager import clock
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.marks import Lap, Marks, Stage
from parrot_manager.core.model import Ref
from parrot_proto.common.v1 import common_pb2
from parrot_runtime.errors import clip
from parrot_runtime.limits import PLACEHOLDERS

LAPS: Final = 8 * PLACEHOLDERS
"""An engine of ours sends fewer, at most six for an output; what stands behind them counts as one."""
NAME_BYTES: Final = 200
LONGEST_MS: Final = 1e12
_STAGES: Final = frozenset(map(int, Stage))


class Noted:
    """The marks of attempts that run, by session, and of each session's last commit."""

    def __init__(self) -> None:
        self._sent_ms: dict[str, dict[Ref, float]] = {}
        self._told_ms: dict[str, dict[Ref, float]] = {}
        self._settled_ms: dict[str, float] = {}

    def sent(self, ref: Ref) -> None:
        """An attempt's program goes to its engine."""
        self._sent_ms.setdefault(ref.session_id, {})[ref] = clock.precise_ms()

    def told(self, ref: Ref) -> None:
        """The engine says that an attempt is done."""
        self._told_ms.setdefault(ref.session_id, {})[ref] = clock.precise_ms()

    def settled(self, session_id: str) -> None:
        """The end of something in a session is stored."""
        self._settled_ms[session_id] = clock.precise_ms()

    def settled_ms(self, session_id: str) -> float:
        """When that was; 0: not by this manager."""
        return self._settled_ms.get(session_id, 0.0)

    def marked(self, event: CallsAccepted) -> CallsAccepted:
        """A batch that came now."""
        settled_ms = self.settled_ms(event.session_id)
        if not settled_ms:
            return event
        calls = (replace(one, marks=replace(one.marks, settled_ms=settled_ms)) for one in event.calls)
        return replace(event, calls=tuple(calls))

    def take(self, ref: Ref, laps: Iterable[common_pb2.Lap]) -> Marks:
        """The marks of an attempt that is over; `laps` as its engine told them: now, if not noted before."""
        return Marks(
            sent_ms=self._sent_ms.get(ref.session_id, {}).pop(ref, 0.0),
            told_ms=self._told_ms.get(ref.session_id, {}).pop(ref, 0.0) or clock.precise_ms(),
            laps=from_laps(laps),
        )

    def forget(self, session_id: str) -> None:
        """A session left memory."""
        for kept in (self._sent_ms, self._told_ms, self._settled_ms):
            kept.pop(session_id, None)


def from_laps(laps: Iterable[common_pb2.Lap]) -> tuple[Lap, ...]:
    """What an engine says it did, as it can be kept: times that are no times are 0."""
    found = [_lap(lap) for lap in laps]
    if len(found) <= LAPS:
        return tuple(found)
    rest_ms = sum(lap.lasted_ms for lap in found[LAPS - 1 :])
    return (*found[: LAPS - 1], Lap(Stage.UNKNOWN, rest_ms))


def to_laps(laps: Iterable[Lap]) -> list[common_pb2.Lap]:
    """Laps as they travel."""
    return [
        common_pb2.Lap(
            stage=common_pb2.Stage.ValueType(lap.stage), lasted_ms=lap.lasted_ms, variable_id=lap.variable_id
        )
        for lap in laps
    ]


def _lap(lap: common_pb2.Lap) -> Lap:
    return Lap(_stage(lap.stage), lasted_ms(lap.lasted_ms), clip(lap.variable_id, NAME_BYTES))


def _stage(number: int) -> Stage:
    """A stage by its number; one of a later release is not known."""
    return Stage(number) if number in _STAGES else Stage.UNKNOWN


def lasted_ms(said: float) -> float:
    """How long an engine says that something took, in ms; what is no time is 0."""
    return min(said, LONGEST_MS) if math.isfinite(said) and said > 0 else 0.0
