"""How fast an engine is: learned from what it reports, by medians, with a guess until there is enough."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from parrot_manager.core.windows import ENOUGH, Window

MEMBER_TOKENS: Final = 64
"""What one more output in a step costs, in tokens of KV that are read: activations, sampling, streaming."""
ALONE: Final = 0.8
"""This share of prefills was disturbed by others."""
_PREFILL_PER_MS: Final = 8.0
_REFIT_EVERY: Final = 8
_OF_A_SIZE: Final = 16
_LEAST_PREFILL_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Line:
    """The time of a step: `fixed_ms + per_token_ms * weight`, the weight being that of the batch."""

    fixed_ms: float = 15.0
    per_token_ms: float = 0.003

    def step_ms(self, weight: float) -> float:
        """The time of a step of so much weight."""
        return self.fixed_ms + self.per_token_ms * weight


def weight(batch: int, kv_tokens: float) -> float:
    """What a step has to do: the KV it reads, each shared token once, and the outputs it serves."""
    return kv_tokens + MEMBER_TOKENS * batch


@dataclass(slots=True)
class Pace:
    """One kind of engine's: those that run one model on one backend.

    Attributes:
        line: the time of its steps.
        prefill_per_ms: tokens.
        known: enough was learned.
        heard: engines say themselves how long their steps are.
    """

    line: Line = Line()
    prefill_per_ms: float = _PREFILL_PER_MS
    known: bool = False
    heard: bool = False
    _steps: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    _prefills: Window = field(default_factory=Window)
    _since_fit: int = 0

    def times(self, factor: float) -> Pace:
        """That of an engine whose steps take so many times as long."""
        line = Line(self.line.fixed_ms * factor, self.line.per_token_ms * factor)
        return Pace(line, self.prefill_per_ms, known=True)

    def learn_step(self, step_weight: float, step_ms: float) -> None:
        """A step of so much weight took so long."""
        # Of light and of heavy steps the last ones are kept: under load there are no light ones for long.
        size = int(math.log2(step_weight + 1))
        self._steps.setdefault(size, deque(maxlen=_OF_A_SIZE)).append((step_weight, step_ms))
        self._since_fit += 1
        if self._since_fit >= (_REFIT_EVERY if self.known else ENOUGH):
            self.line = fit([step for steps in self._steps.values() for step in steps], self.line)
            self.known, self._since_fit = True, 0
            if not len(self._prefills):
                # Whose steps are slow prefills slowly.
                self.prefill_per_ms = _PREFILL_PER_MS * min(1.0, Line().fixed_ms / self.line.fixed_ms)

    def learn_prefill(self, tokens: int, took_ms: float) -> None:
        """So many tokens were prefilled in so long."""
        if tokens < _LEAST_PREFILL_TOKENS or took_ms <= 0:
            return
        self._prefills.add(tokens / took_ms)
        # What a prefill took has waits for others in it: the faster ones are nearer to the truth. Even a
        # single one is, where the guess may be off by the distance from a laptop to a rack.
        self.prefill_per_ms = self._prefills.quantile(ALONE if self._prefills.enough else 1.0)


def fit(steps: list[tuple[float, float]], before: Line) -> Line:
    """The line through the medians of the lighter and the heavier half (Brown and Mood).

    Steps that are all about as heavy say nothing of the slope: the line of `before` is made as much longer.
    """
    steps = sorted(steps)
    half = len(steps) // 2
    light, heavy = steps[:half], steps[-half:]
    run = statistics.median(w for w, _ in heavy) - statistics.median(w for w, _ in light)
    if run <= max(MEMBER_TOKENS, 0.5 * statistics.median(w for w, _ in heavy)):
        factor = statistics.median(ms / before.step_ms(w) for w, ms in steps)
        return Line(before.fixed_ms * factor, before.per_token_ms * factor)
    rise = statistics.median(ms for _, ms in heavy) - statistics.median(ms for _, ms in light)
    slope = max(0.0, rise / run)
    fixed = statistics.median(ms - slope * w for w, ms in steps)
    if fixed <= 0:
        fixed = min(ms for _, ms in steps) / 2
        slope = max(0.0, statistics.median((ms - fixed) / max(w, 1.0) for w, ms in steps))
    return Line(fixed, slope)
