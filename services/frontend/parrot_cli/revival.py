"""When a component that dies is not worth starting again."""

from __future__ import annotations

import time
from typing import Final

DEATHS: Final = 5
HEALTHY_S: Final = 60.0
"""Of a component that was ready for so long, earlier deaths are forgotten."""
PAUSE_S: Final = 0.5
"""Between a death and the next start."""


class Deaths:
    """Those of one component that is ready: given up when it dies `DEATHS` times without a stretch of health.

    How long it takes to get ready is no health, nor how long it takes to die.
    """

    def __init__(self) -> None:
        self._count = 0
        self._ready_at: float | None = time.monotonic()

    def reborn(self, *, ready: bool) -> None:
        """Notes that it was started again, and whether it got ready."""
        self._ready_at = time.monotonic() if ready else None

    def one_more(self) -> bool:
        """Notes a death; whether it is one too many."""
        if self._ready_at is not None and time.monotonic() - self._ready_at >= HEALTHY_S:
            self._count = 0
        self._count += 1
        return self._count == DEATHS
