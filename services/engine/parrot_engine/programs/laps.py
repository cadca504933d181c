"""What a program does from its arrival to its end, lap by lap: each begins where the one before ended."""

from __future__ import annotations

import time
from typing import Final

from parrot_engine.backends.base import Phases
from parrot_proto.common.v1 import common_pb2
from parrot_proto.common.v1.common_pb2 import (
    STAGE_DECODE,
    STAGE_DYNAMIC_PREFILL,
    STAGE_INPUTS,
    STAGE_PUBLISH,
    STAGE_QUEUE,
    STAGE_STATIC_PREFILL,
    STAGE_TRANSFORMS,
    STAGE_UNSPECIFIED,
)

SHORT_MS: Final = 0.05
"""A shorter lap counts to the one before, whatever it is."""


class Laps:
    """The laps of one program. They leave nothing out, so that they sum to its time on the engine."""

    def __init__(self, arrived_ns: int) -> None:
        """`arrived_ns`: when the program came, Unix time; from there on an undisturbed clock is read."""
        self._at_ns = time.monotonic_ns() - max(0, time.time_ns() - arrived_ns)
        self._laps: list[common_pb2.Lap] = []
        self._waited = False

    @property
    def message(self) -> list[common_pb2.Lap]:
        """The laps so far."""
        return list(self._laps)

    @property
    def prefill_stage(self) -> common_pb2.Stage.ValueType:
        """Of what is computed now: an input came since the last output, or not."""
        return STAGE_DYNAMIC_PREFILL if self._waited else STAGE_STATIC_PREFILL

    def read(self) -> None:
        """The program and what is there of its inputs were read."""
        self._until(STAGE_INPUTS)

    def waited(self, variable_id: str) -> None:
        """An input that was missing has come to its end."""
        self._until(STAGE_INPUTS, variable_id=variable_id)
        self._waited = True

    def filled(self, stage: common_pb2.Stage.ValueType | None = None) -> None:
        """A part of the prompt is noted, or computed; None: see `prefill_stage`."""
        self._until(self.prefill_stage if stage is None else stage)

    def queued(self) -> None:
        """A place was found."""
        self._until(STAGE_QUEUE)

    def generated(self, asked_ns: int, phases: Phases) -> None:
        """An output has its last token.

        Args:
            asked_ns: when the backend was asked, by `time.monotonic_ns`.
            phases: what it says of the time since then; what it leaves out is decode.
        """
        now_ns = time.monotonic_ns()
        first_step_ns = asked_ns + int(phases.queue_ms * 1e6)
        self._until(STAGE_QUEUE, min(first_step_ns, now_ns))
        self._until(self.prefill_stage, min(first_step_ns + int(phases.prefill_ms * 1e6), now_ns))
        self._until(STAGE_DECODE, now_ns)
        self._waited = False

    def ran(self) -> None:
        """The last of several outputs has its last token, or the code of a function has come to its end."""
        self._until(STAGE_DECODE)

    def transformed(self) -> None:
        """An output is the text it shall be."""
        self._until(STAGE_TRANSFORMS)

    def published(self, variable_id: str) -> None:
        """An output's value is on the bus."""
        self._until(STAGE_PUBLISH, variable_id=variable_id)

    def broke_off(self) -> None:
        """It came to nothing, in whatever it was doing."""
        self._until(STAGE_UNSPECIFIED)

    def _until(
        self, stage: common_pb2.Stage.ValueType, now_ns: int | None = None, *, variable_id: str = ""
    ) -> None:
        end_ns = max(self._at_ns, time.monotonic_ns() if now_ns is None else now_ns)
        lasted_ms, self._at_ns = (end_ns - self._at_ns) / 1e6, end_ns
        last = self._laps[-1] if self._laps else None
        joins = last is not None and not (variable_id or last.variable_id)
        if last is not None and joins and (last.stage == stage or lasted_ms < SHORT_MS):
            last.lasted_ms += lasted_ms
            return
        self._laps.append(common_pb2.Lap(stage=stage, lasted_ms=lasted_ms, variable_id=variable_id))
