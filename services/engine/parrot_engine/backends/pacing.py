"""How many tokens a step may take, so that nobody who is being answered waits too long for the next one.

A step that prefills holds every output in its batch until it ends. While an output has a limit for its
steps, the step takes only as many tokens as steps of lately say fit into it. Prompts that are as urgent
themselves are not cut: what they wait, and all the steps with little in them, cost more than the others lose.

A piece in every step would still make every step as long as that. An output may say what prompts that can
wait may add to its steps on average: each piece of them is then a debt, which steps without one pay off. Few
larger pieces with pauses between them cost less than many small ones, as a piece has a price of its own.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

STEPS_KEPT: Final = 32
LEAST_PREFILLED: Final = 32
"""A step prefills so many tokens, however short it is to be: what waits for its prefill gets on too."""
TELLING: Final = 32
"""A step that prefilled fewer tokens than this says little of what one of them costs."""


class StepPace:
    """What steps cost lately: those that only decoded, and each token that was prefilled beside."""

    def __init__(self) -> None:
        self._decode_s: deque[float] = deque(maxlen=STEPS_KEPT)
        self._token_s: deque[float] = deque(maxlen=STEPS_KEPT)
        self._piece_s: deque[float] = deque(maxlen=STEPS_KEPT)
        self._debt_s = 0.0

    @property
    def decode_ms(self) -> float:
        """The median time of a step that only decodes; 0: there was none yet."""
        return statistics.median(self._decode_s) * 1000 if self._decode_s else 0.0

    @property
    def token_ms(self) -> float:
        """By how much a token that is prefilled makes a step longer; 0: it is not known yet."""
        return self._token_seconds() * 1000

    @property
    def piece_token_ms(self) -> float:
        """The same, of a token of a small piece, which has a price of its own, or is computed on the side."""
        return statistics.median(self._piece_s) * 1000 if self._piece_s else 0.0

    def note(self, seconds: float, prefilled: int) -> None:
        """Takes in how long a step took that followed another one directly."""
        more_s = seconds - self.decode_ms / 1000
        if not prefilled:
            self._decode_s.append(seconds)
        elif prefilled >= TELLING:
            self._token_s.append(max(0.0, more_s) / prefilled)
        elif self._decode_s:
            self._piece_s.append(max(0.0, more_s) / prefilled)

    @property
    def owes(self) -> bool:
        """Prompts that can wait took more than their share, and pause."""
        return self._debt_s > 0

    def owe(self, tokens: int) -> None:
        """Prompts that can wait were given so many tokens of a step."""
        self._debt_s += tokens * self._token_seconds()

    def pay(self, share: float) -> None:
        """A step has passed, of whose time `share` is theirs; 0: they owe nobody anything.

        Before any step only decoded nothing says what they could pay with, and they would wait for ever.
        """
        paid_s = share * self.decode_ms / 1000
        self._debt_s = max(0.0, self._debt_s - paid_s) if paid_s else 0.0

    def prefilled(self, limit_ms: float, most: int) -> int:
        """The tokens a step may prefill that is to take no longer than `limit_ms`; `most` at the most.

        Before any were prefilled nothing is known of them, and so few are taken that it is soon.
        """
        if most <= LEAST_PREFILLED:
            return most
        if not self._token_s:
            return LEAST_PREFILLED
        token_s = self._token_seconds()
        left_s = (limit_ms - self.decode_ms) / 1000
        if left_s <= 0:
            return LEAST_PREFILLED
        if left_s >= most * token_s:
            return most
        return max(LEAST_PREFILLED, int(left_s / token_s))

    def _token_seconds(self) -> float:
        return statistics.median(self._token_s) if self._token_s else 0.0
