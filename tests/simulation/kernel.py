"""One clock, and processes on it: coroutines that die with their process and stand still with it.

Nothing here knows the time of day or a thread: what happens next is the earliest entry of one heap,
and of entries of the same millisecond the one that was made first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
START_MS = 1_700_000_000_000
NEVER_MS = 1 << 62


class Process:
    """What dies, or stands still, as one.

    Attributes:
        awake_ms: nothing of it runs before that.
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.alive = True
        self.awake_ms = 0

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Runs a coroutine, from now on, as long as the process lives."""
        self.after(0, self._start, work, args)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], args: tuple[object, ...]) -> None:
        _Task(self, work(*args)).wake(0, None)

    def after(self, delay_ms: int, call: Callable[..., None], *args: object) -> Entry:
        """Calls in a while, if the process lives then."""
        return self.clock.call_at(self.clock.now_ms + delay_ms, self, call, args)

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.alive = False

    def freeze(self, for_ms: int) -> None:
        """Stands still; what is due meanwhile is done late."""
        self.awake_ms = max(self.awake_ms, self.clock.now_ms + for_ms)


class Entry:
    """Something that is to happen; `call` is taken away when it is not to, after all."""

    __slots__ = ("args", "at_ms", "call", "process", "serial")

    def __init__(
        self, at_ms: int, serial: int, process: Process, call: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        self.at_ms = at_ms
        self.serial = serial
        self.process = process
        self.call: Callable[..., None] | None = call
        self.args = args

    def cancel(self) -> None:
        """It does not happen."""
        self.call = None


class Clock:
    """Simulated time. It moves when there is nothing left to do in the present."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._heap: list[tuple[int, int, Entry]] = []
        self._serial = 0

    def call_at(
        self, at_ms: int, process: Process, call: Callable[..., None], args: tuple[object, ...]
    ) -> Entry:
        """Calls at a time, if the process lives then."""
        self._serial += 1
        entry = Entry(max(at_ms, self.now_ms), self._serial, process, call, args)
        heappush(self._heap, (entry.at_ms, entry.serial, entry))
        return entry

    def run(self, until_ms: int) -> None:
        """Does all that is due before `until_ms`, in order; then it is that time."""
        heap = self._heap
        while heap and heap[0][0] < until_ms:
            at_ms, _, entry = heappop(heap)
            process, call = entry.process, entry.call
            if call is None or not process.alive:
                continue
            if process.awake_ms > at_ms:
                self.call_at(process.awake_ms, process, call, entry.args)
                continue
            self.now_ms = at_ms
            call(*entry.args)
        self.now_ms = until_ms


class Signal:
    """Something that happens now and then, and is waited for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[_Task, int]] = []

    def notify(self) -> None:
        """Wakes all who wait."""
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            task.wake_soon(turn)

    async def wait(self, timeout_ms: int = NEVER_MS) -> bool:
        """Returns when it happens: True; or after a while: False."""
        return await _Wait(self, timeout_ms)

    def add(self, task: _Task, turn: int) -> None:
        """One more who waits."""
        self._waiting.append((task, turn))


class Answer(Generic[T]):
    """What somebody is told once, or the error it comes to."""

    __slots__ = ("_error", "_given", "_signal", "_value")

    def __init__(self) -> None:
        self._signal = Signal()
        self._value: T | None = None
        self._error: Exception | None = None
        self._given = False

    def give(self, value: T) -> None:
        """Answers, if nothing was answered yet."""
        if not self._given:
            self._value, self._given = value, True
            self._signal.notify()

    def refuse(self, error: Exception) -> None:
        """Answers with an error, if nothing was answered yet."""
        if not self._given:
            self._error, self._given = error, True
            self._signal.notify()

    async def get(self, timeout_ms: int, late: Exception) -> T:
        """The answer.

        Raises:
            `late`, when it takes longer than `timeout_ms`; and what it was refused with.
        """
        if not self._given and not await self._signal.wait(timeout_ms):
            raise late
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


async def sleep(delay_ms: int) -> None:
    """Waits."""
    await _Wait(None, delay_ms)


class _Wait:
    __slots__ = ("signal", "timeout_ms")

    def __init__(self, signal: Signal | None, timeout_ms: int) -> None:
        self.signal = signal
        self.timeout_ms = timeout_ms

    def __await__(self) -> Generator[_Wait, bool, bool]:
        return (yield self)


class _Task:
    """A coroutine and the turn it waits for: whoever wakes it for an older one comes too late."""

    __slots__ = ("_process", "_turn", "_work")

    def __init__(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        self._process = process
        self._work = work
        self._turn = 0

    def wake_soon(self, turn: int) -> None:
        clock = self._process.clock
        clock.call_at(clock.now_ms, self._process, self.wake, (turn, True))

    def wake(self, turn: int, value: bool | None) -> None:
        if turn != self._turn:
            return
        self._turn += 1
        try:
            wait: _Wait = self._work.send(value)
        except StopIteration:
            return
        if wait.signal is not None:
            wait.signal.add(self, self._turn)
        if wait.timeout_ms < NEVER_MS:
            clock = self._process.clock
            clock.call_at(clock.now_ms + wait.timeout_ms, self._process, self.wake, (self._turn, False))
