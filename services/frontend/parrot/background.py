"""The event loop the SDK runs on: one thread a process, started at first use.

Everything the SDK does is written once, as coroutines of this loop. Synchronous callers wait for
them, from any thread and beside a running loop such as a notebook's; asynchronous callers await them
from their own loop.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_STOP_S = 2.0


class Background:
    """A thread with an event loop; `stop` ends both."""

    def __init__(self) -> None:
        import asyncio

        self.pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="parrot", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, waited for. An interrupt of the wait cancels the coroutine."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, awaited from another loop. Cancelling the wait cancels the coroutine."""
        import asyncio

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Ends the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._loop.close()


_lock = threading.Lock()
_background: Background | None = None


def background() -> Background:
    """This process's background loop. A forked child gets its own."""
    global _background  # noqa: PLW0603 - one a process is the point
    with _lock:
        if _background is None or _background.pid != os.getpid():
            _background = Background()
        return _background


@atexit.register
def stop() -> None:
    """Ends this process's background loop; the next use starts another."""
    global _background
    with _lock:
        running, _background = _background, None
    if running is not None and running.pid == os.getpid():
        running.stop()
