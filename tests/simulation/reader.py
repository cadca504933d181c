"""Readers: the buffers and cursors of `parrot_runtime.values.reader`, over the simulated bus."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord
from parrot_runtime.values.reader import Chunk, Cursor, End, SessionFeed
from parrot_runtime.values.subjects import SessionSubjects
from tests.simulation.bus import Bus, Delta, Heard
from tests.simulation.kernel import Process, Signal

T = TypeVar("T")
TENANT = "default"
LOOK_MS = 1_000
"""A reader that heard nothing for so long looks for the variable's end."""


class Feed:
    """What one process hears of one session."""

    def __init__(self, process: Process, bus: Bus, session_id: str) -> None:
        self._process = process
        self._bus = bus
        self._session_id = session_id
        self._feed = SessionFeed(cast("Any", None), SessionSubjects(TENANT, session_id))
        self._changed = Signal()
        self._filling = False
        bus.listen(session_id, self._hear)
        self._catch_up()

    def close(self) -> None:
        """Hears no more."""
        self._bus.unlisten(self._session_id, self._hear)

    def cursor(self, variable_id: str, offset_bytes: int = 0) -> Cursor:
        """A reader of a variable that has everything before `offset_bytes`."""
        return self._feed.cursor(variable_id, offset_bytes)

    async def next(self, variable_id: str, cursor: Cursor) -> Chunk | End:
        """What comes next; as long as it takes."""
        buffer = self._feed.buffer(variable_id)
        while True:
            if buffer.end is not None or len(buffer.data) > cursor.offset_bytes:
                news = at_once(cursor.next(0))
                assert news is not None
                return news
            if not await self._changed.wait(LOOK_MS):
                await self._look(variable_id)

    async def _look(self, variable_id: str) -> None:
        try:
            record = await self._bus.read(self._session_id, variable_id)
        except Fault:
            return
        if record is not None:
            self._feed.resolve(record)

    def _hear(self, heard: Heard) -> None:
        if not self._process.alive:
            return
        if isinstance(heard, FinalRecord):
            self._feed.resolve(heard)
        else:
            self._add(heard)
        self._changed.notify()

    def _add(self, delta: Delta) -> None:
        if delta.offset_bytes > len(self._feed.buffer(delta.variable_id).data):
            self._catch_up()
        self._feed.offer(delta.variable_id, delta.attempt, delta.offset_bytes, delta.text)

    def _catch_up(self) -> None:
        if not self._filling:
            self._filling = True
            self._process.spawn(self._fill)

    async def _fill(self) -> None:
        try:
            for delta in await self._bus.replay(self._session_id):
                self._feed.offer(delta.variable_id, delta.attempt, delta.offset_bytes, delta.text)
        except Fault:
            pass
        self._filling = False
        self._changed.notify()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise AssertionError("it waits")
