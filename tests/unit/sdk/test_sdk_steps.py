"""Whoever gives up the wait for a stream's next item gets what ended the wait, and the stream is closed."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from parrot import background
from parrot.background import Background

TURNS = 100
"""Of the loop, that a stream takes to let go of its connection."""
TIMES = 20


@pytest.fixture
def loop() -> Iterator[Background]:
    """A loop of the SDK's own."""
    yield background.background()
    background.stop()


class Stream:
    """A stream that brings one item, and then nothing.

    Attributes:
        silent: called when its next item is waited for.
        closed: it has let go of what it held.
    """

    def __init__(self, silent: Callable[[], object] = bool) -> None:
        self.silent = silent
        self.closed = threading.Event()

    async def items(self) -> AsyncIterator[int]:
        """Its items."""
        try:
            yield 1
            self.silent()
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.closed.set()


@pytest.mark.anyio
async def test_a_reader_that_is_cancelled_is_cancelled(loop: Background) -> None:
    here = asyncio.get_running_loop()
    for _ in range(TIMES):
        waiting = asyncio.Event()
        stream = Stream(lambda waiting=waiting: here.call_soon_threadsafe(waiting.set))  # type: ignore[misc]

        async def read(stream: Stream) -> None:
            async for _ in loop.aiterate(stream.items()):
                pass

        task = asyncio.create_task(read(stream))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stream.closed.is_set()


async def in_time(items: AsyncIterator[int]) -> int:
    """The next item, if it comes soon."""
    async with asyncio.timeout(0.005):
        return await anext(items)


@pytest.mark.anyio
async def test_a_reader_whose_time_is_over_hears_that(loop: Background) -> None:
    for _ in range(TIMES):
        stream = Stream()
        items = loop.aiterate(stream.items())
        assert await anext(items) == 1
        with pytest.raises(TimeoutError):
            await in_time(items)
        assert stream.closed.is_set()


@pytest.mark.anyio
async def test_a_stream_is_closed_even_if_its_reader_is_cancelled_again_meanwhile(loop: Background) -> None:
    here, waiting = asyncio.get_running_loop(), asyncio.Event()
    stream = Stream(lambda: here.call_soon_threadsafe(waiting.set))

    async def read() -> None:
        async for _ in loop.aiterate(stream.items()):
            pass

    task = asyncio.create_task(read())
    await waiting.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert await asyncio.to_thread(stream.closed.wait, 20)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[threading.Event], None]]:
    """Presses Ctrl-C, and again where it came just before the wait it was to end, until it was felt."""
    main = threading.main_thread().ident
    assert main is not None
    # Whoever starts tests in the background may have it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(felt: threading.Event) -> None:
        while not felt.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            felt.wait(5)

    yield lambda felt: threading.Thread(target=press, args=(felt,), daemon=True).start()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_a_keyboard_interrupt(loop: Background, ctrl_c: Callable[[threading.Event], None]) -> None:
    for _ in range(TIMES):
        felt = threading.Event()
        stream = Stream(lambda felt=felt: ctrl_c(felt))  # type: ignore[misc]
        with pytest.raises(KeyboardInterrupt):
            for _ in loop.iterate(stream.items()):
                pass
        felt.set()
        assert stream.closed.is_set()


def test_a_reader_that_leaves_closes_the_stream(loop: Background) -> None:
    stream = Stream()
    items = loop.iterate(stream.items())
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert stream.closed.is_set()
