"""When a component that dies is not worth starting again."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

DEATHS: Final = 5
WITHIN_S: Final = 60.0
PAUSE_S: Final = 0.5
"""Between a death and the next start."""


class Deaths:
    """Those of one component: it is given up when it dies `DEATHS` times within `WITHIN_S`."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=DEATHS)

    def one_more(self) -> bool:
        """Notes a death; whether it is one too many."""
        self._times.append(time.monotonic())
        return len(self._times) == DEATHS and self._times[-1] - self._times[0] < WITHIN_S
