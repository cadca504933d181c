"""How long waits end when the gateway stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class GatewayClosing(Exception):
    """The gateway stops; the client may go on at another one."""


class Closing:
    """Interrupts waits once `begin` is called. Costs a wait no task of its own."""

    def __init__(self) -> None:
        self._begun = False
        self._waits: set[asyncio.Timeout] = set()

    @property
    def begun(self) -> bool:
        """Whether the gateway stops."""
        return self._begun

    def begin(self) -> None:
        """Interrupts every wait, and every later one."""
        self._begun = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    async def interruptible(self, wait: Coroutine[Any, Any, T]) -> T:
        """The result of `wait`.

        Raises:
            GatewayClosing: the gateway stops first.
        """
        if self._begun:
            wait.close()
            raise GatewayClosing
        try:
            async with asyncio.timeout(None) as timeout:
                self._waits.add(timeout)
                try:
                    return await wait
                finally:
                    self._waits.discard(timeout)
        except TimeoutError:
            raise GatewayClosing from None
