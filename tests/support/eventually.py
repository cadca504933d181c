"""Waits, in a loop of its own, for a condition that another thread or connection makes true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Returns once the condition holds.

    Raises:
        TimeoutError: it does not come to hold within `within_s`.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what changes it can set no event of this loop
            await asyncio.sleep(0.001)
