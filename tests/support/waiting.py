"""Waits for a condition that another process makes true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], within_s: float = 20.0) -> T:
    """The condition's value once that is true.

    Raises:
        AssertionError: it does not come true within `within_s`.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within_s:g} s: {condition}")
        time.sleep(0.01)  # between two looks at another process, which can't tell us
    return value
