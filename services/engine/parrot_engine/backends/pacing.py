"""How many tokens a step may take, so that nobody who is being answered waits too long for the next one.

A step that prefills holds every output in its batch until it ends. While an output has a limit for its
steps, the step takes only as many tokens as steps of lately say fit into it. Prompts that are as urgent
themselves are not cut: what they wait, and all the steps with little in them, cost more than the others lose.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

STEPS_KEPT: Final = 32
LEAST_PREFILLED: Final = 32
"""A step prefills so many tokens, however short it is to be: what waits for its prefill gets on too."""
TELLING: Final = 8
"""A step that prefilled fewer tokens than this says little of what one of them costs."""


class StepPace:
    """What steps cost lately: those that only decoded, and each token that was prefilled beside."""

    def __init__(self) -> None:
        self._decode_s: deque[float] = deque(maxlen=STEPS_KEPT)
        self._token_s: deque[float] = deque(maxlen=STEPS_KEPT)

    @property
    def decode_ms(self) -> float:
        """The median time of a step that only decodes; 0: there was none yet."""
        return statistics.median(self._decode_s) * 1000 if self._decode_s else 0.0

    def note(self, seconds: float, prefilled: int) -> None:
        """Takes in how long a step took that followed another one directly."""
        if not prefilled:
            self._decode_s.append(seconds)
        elif prefilled >= TELLING:
            self._token_s.append(max(0.0, seconds - self.decode_ms / 1000) / prefilled)

    def beside(self, limit_ms: float, urgent: int, most: int) -> int:
        """The tokens a step may prefill beside outputs with a limit, of which `urgent` are wanted soon."""
        return max(self.prefilled(limit_ms, most), min(urgent, most))

    def prefilled(self, limit_ms: float, most: int) -> int:
        """The tokens a step may prefill that is to take no longer than `limit_ms`; `most` at the most.

        Before any were prefilled nothing is known of them, and so few are taken that it is soon.
        """
        if most <= LEAST_PREFILLED:
            return most
        if not self._token_s:
            return LEAST_PREFILLED
        token_s = statistics.median(self._token_s)
        left_s = (limit_ms - self.decode_ms) / 1000
        if left_s <= 0:
            return LEAST_PREFILLED
        if left_s >= most * token_s:
            return most
        return max(LEAST_PREFILLED, int(left_s / token_s))
