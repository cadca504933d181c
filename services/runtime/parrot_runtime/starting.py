"""A stop that comes before a service has begun to listen for it.

The first process of a container ignores SIGTERM until it has a handler, and importing a service takes a
second or more: without one, a pod that is deleted as it starts lives until it is killed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def stoppable() -> None:
    """From here on, and until `run_service` listens, SIGTERM ends the process at once.

    Called before anything is imported that takes its time; there is nothing to undo yet.
    """
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
