"""The event loop the SDK runs on: one thread a process, started at first use.

Everything the SDK does is written once, as coroutines of this loop. Synchronous callers wait for
them, from any thread and beside a running loop such as a notebook's; asynchronous callers await them
from their own loop.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from parrot.errors import SessionError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

_STOP_S = 2.0


class Background:
    """A thread with an event loop; `stop` ends both."""

    def __init__(self) -> None:
        import asyncio

        self.pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._closers: list[Callable[[], Work[None]]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="parrot", daemon=True)
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        """The coroutine's result, waited for. An interrupt of the wait cancels the coroutine.

        Raises:
            SessionError: this is the background thread itself, which must not wait.
        """
        import asyncio

        if threading.current_thread() is self._thread:
            work.close()
            raise SessionError("this runs on the SDK's own loop, which must not wait; use the async methods")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise SessionError("the SDK was stopped meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Work[T]) -> T:
        """The coroutine's result, awaited from another loop. Cancelling the wait cancels the coroutine."""
        import asyncio

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _finish(self, work: Work[None]) -> None:
        """As `arun`, but cancelling the wait leaves the coroutine to its end."""
        import asyncio

        await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of a generator of the loop, none of which is None; it is closed in any case."""
        steps = _Steps(items)
        try:
            while (item := self.run(steps.next())) is not None:
                yield item
        finally:
            self.run(steps.close())

    async def aiterate(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """As `iterate`, on another loop."""
        steps = _Steps(items)
        try:
            while (item := await self.arun(steps.next())) is not None:
                yield item
        finally:
            await self._finish(steps.close())

    def start(self, work: Work[Any]) -> None:
        """Has the coroutine run, without waiting for it. What it raises is not seen here."""
        import asyncio

        asyncio.run_coroutine_threadsafe(work, self._loop)

    def at_stop(self, closer: Callable[[], Work[None]]) -> None:
        """Has `closer` run on the loop before it ends."""
        self._closers.append(closer)

    def stop(self) -> None:
        """Cancels what runs, closes what was opened, and ends the loop and its thread."""
        import asyncio

        if self._thread.is_alive():
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            closing.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
            self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        import asyncio

        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for closer in reversed(self._closers):
            await closer()
        await self._loop.shutdown_asyncgens()


class _Steps(Generic[T]):
    """The steps of a generator of the loop, which never overlap.

    A step whose wait was given up is cancelled, and still unwinds when the generator is to be closed.
    """

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._last: asyncio.Task[Any] | None = None

    async def next(self) -> T | None:
        """The next item; None at the end."""
        import asyncio

        self._last = asyncio.current_task()
        return await anext(self._items, None)

    async def close(self) -> None:
        """Closes the generator, once the last step has ended."""
        import asyncio

        if self._last is not None:
            if not self._last.cancelling():
                self._last.cancel()
            await asyncio.wait({self._last})
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


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
