"""The wall clock, in the units the manager keeps."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def precise_ms() -> float:
    """The same, with their fractions."""
    return time.time_ns() / 1e6
