"""Watches one variable until its end: text from the bus, the truth from the manager.

The bus is listened to first and the manager asked then, so nothing falls between. An end heard on
the bus is told once the manager has it too: whoever has read a value finds its call done. While the
bus is silent the manager is asked again, should an announcement have been lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from parrot_gateway.manager_client import ManagerClient
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord
from parrot_runtime.values.reader import Chunk, Cursor, End, Feeds, SessionFeed

ENDS: Final = frozenset(
    {
        common_pb2.VARIABLE_STATE_READY,
        common_pb2.VARIABLE_STATE_FAILED,
        common_pb2.VARIABLE_STATE_CANCELLED,
    }
)
FIRST_RECHECK_S: Final = 0.25
"""The first text may have passed just before the bus was listened to, and the manager not know yet."""
LONGEST_RECHECK_S: Final = 60.0
CONFIRM_S: Final = 5.0
"""How long one question waits for the manager to have stored an end; then it is asked anew."""
ASK_AGAIN_S: Final = 0.25

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ended:
    """The variable's end, as the manager has it; `text` is set when it is ready.

    Attributes:
        usage: of the call that made it.
    """

    variable: manager_pb2.Variable
    text: str | None
    usage: common_pb2.Usage


class Watch(Protocol):
    """One reader's view of one variable."""

    variable: manager_pb2.Variable
    """As the manager last told."""

    @property
    def end(self) -> Ended | None:
        """Its end, as soon as that is known; `variable` has not ended before."""
        ...

    async def next(self, timeout_s: float) -> Chunk | Ended | None:
        """What comes next: text, the end, or None when nothing came within `timeout_s`.

        Raises:
            Fault: `invalid_request`, when the offset is none of the value's; `not_found`, when the
                variable is gone.
        """
        ...


@asynccontextmanager
async def watching(
    manager: ManagerClient,
    feeds: Feeds,
    session_id: str,
    variable_id: str,
    *,
    offset_bytes: int = 0,
    recheck_s: float,
    criteria: manager_pb2.Criteria | None = None,
) -> AsyncIterator[Watch]:
    """A watch for the length of the `async with`, of one who has everything before `offset_bytes`.

    `criteria`: what the reader wants of the variable.

    Raises:
        Fault: `not_found`; `unavailable`; `invalid_request` when the variable has no such offset.
    """
    got = await manager.get_variable(session_id, variable_id, criteria=criteria)
    if got.variable.state in ENDS:
        yield _Known(got, offset_bytes)
        return
    async with feeds.session(manager.tenant, session_id) as feed:
        live = _Live(manager, feed, session_id, got.variable, offset_bytes=offset_bytes, recheck_s=recheck_s)
        await live.refresh(patient=True)
        await live.check(offset_bytes)
        yield live


@asynccontextmanager
async def watching_accepted(
    manager: ManagerClient, feeds: Feeds, session_id: str, variable_id: str, *, recheck_s: float
) -> AsyncIterator[Watch]:
    """A watch of an output whose call was accepted: nobody is asked whether it is there.

    What passed before the bus is listened to is found by the watch's first look, which is its first act.

    Raises:
        Fault: `unavailable`, when the bus can't be reached.
    """
    async with feeds.session(manager.tenant, session_id) as feed:
        variable = manager_pb2.Variable(id=variable_id, state=common_pb2.VARIABLE_STATE_PENDING)
        yield _Live(manager, feed, session_id, variable, offset_bytes=0, recheck_s=recheck_s)


class _Known:
    """A variable that had ended before the watch began: the bus is not needed."""

    def __init__(self, got: manager_pb2.GetVariableResponse, offset_bytes: int) -> None:
        self.variable = got.variable
        self._end = _ended(got)
        data = (self._end.text or "").encode()
        _check_end(self._end, offset_bytes)
        self._rest = data[offset_bytes:].decode()
        self._offset_bytes = offset_bytes

    @property
    def end(self) -> Ended | None:
        return self._end

    async def next(self, timeout_s: float) -> Chunk | Ended | None:
        rest, self._rest = self._rest, ""
        return Chunk(self._offset_bytes, rest) if rest else self._end


class _Live:
    """A variable that is awaited or being written."""

    def __init__(
        self,
        manager: ManagerClient,
        feed: SessionFeed,
        session_id: str,
        variable: manager_pb2.Variable,
        *,
        offset_bytes: int,
        recheck_s: float,
    ) -> None:
        self.variable = variable
        self._manager = manager
        self._feed = feed
        self._session_id = session_id
        self._cursor: Cursor = feed.cursor(variable.id, offset_bytes)
        self._recheck_s = recheck_s
        self._pause_s = min(FIRST_RECHECK_S, recheck_s)
        self._recheck_at = 0.0
        self._breaks = feed.breaks
        self._heard: FinalRecord | None = None
        self._end: Ended | None = None

    @property
    def end(self) -> Ended | None:
        return self._end

    async def next(self, timeout_s: float) -> Chunk | Ended | None:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            news = await (self._listen(left_s) if self._heard is None else self._confirm(left_s))
            if news is not None:
                return news
        return None

    async def check(self, offset_bytes: int) -> None:
        """Refuses an offset that is none of the variable's, as far as that can be known.

        Raises:
            Fault: `invalid_request`.
        """
        if self._end is not None:
            _check_end(self._end, offset_bytes)
            return
        reach_bytes = await self._feed.reach_bytes(self.variable.id, offset_bytes) if offset_bytes else None
        if reach_bytes is None:
            return
        # A variable that is being written, and of which nothing is on the bus: that has gone with its age.
        if reach_bytes or self.variable.state != common_pb2.VARIABLE_STATE_STREAMING:
            raise _no_offset(offset_bytes, f"lies beyond the {reach_bytes} bytes so far", self.variable.id)

    async def refresh(self, *, patient: bool = False) -> None:
        """Asks the manager, and tells the feed of an end it may have missed.

        By default without patience: text that the bus brings is not to wait for a manager.

        Raises:
            Fault: the manager's.
        """
        self._recheck_at = time.monotonic() + self._pause_s
        # A variable that was silent for long is likely to be so for longer.
        self._pause_s = min(max(2 * self._pause_s, self._recheck_s), LONGEST_RECHECK_S)
        self._breaks = self._feed.breaks
        got = await self._manager.get_variable(self._session_id, self.variable.id, patient=patient)
        self.variable = got.variable
        if got.variable.state in ENDS:
            self._end = _ended(got)
            self._feed.resolve(_record_of(self._end))
        elif got.variable.state == common_pb2.VARIABLE_STATE_STREAMING:
            self._feed.catch_up()

    async def _listen(self, left_s: float) -> Chunk | Ended | None:
        silent_s = max(self._recheck_at - time.monotonic(), 0.0)
        news = await self._hear(min(left_s, silent_s))
        if isinstance(news, Chunk):
            self._pause_s = self._recheck_s
            self._recheck_at = time.monotonic() + self._recheck_s
            return news
        if news is not None:
            self._heard = news.record
            return self._end
        if time.monotonic() >= self._recheck_at or self._feed.breaks != self._breaks:
            await self._try(self.refresh())
        return None

    async def _hear(self, within_s: float) -> Chunk | End | None:
        """What the bus has next; while it is away, it is silent and the manager is asked."""
        try:
            return await self._cursor.next(within_s)
        except Fault as fault:
            if fault.kind is not errors.UNAVAILABLE:
                raise
            log.debug("the bus can't be read now", session_id=self._session_id, reason=fault.message)
            await asyncio.sleep(ASK_AGAIN_S)
            self._recheck_at = time.monotonic()
            return None

    async def _confirm(self, left_s: float) -> Ended | None:
        """Waits for the manager to have the end that was heard."""
        if self._end is None:
            await self._try(self._look(min(left_s, CONFIRM_S)))
        return self._end

    async def _look(self, wait_s: float) -> None:
        got = await self._manager.get_variable(
            self._session_id, self.variable.id, with_value=False, wait_s=wait_s, patient=False
        )
        if got.variable.state not in ENDS:
            self.variable = got.variable
            return
        ready = got.variable.state == common_pb2.VARIABLE_STATE_READY
        heard = self._heard.text if self._heard is not None else None
        if ready and heard is None:
            await self.refresh()
        else:
            self.variable = got.variable
            self._end = Ended(got.variable, heard if ready else None, got.usage)

    async def _try(self, asking: Awaitable[None]) -> None:
        """Asks the manager; one that can't be reached is asked again later."""
        try:
            await asking
        except Fault as fault:
            if fault.kind is not errors.UNAVAILABLE:
                raise
            log.debug("the manager can't be asked now", session_id=self._session_id)
            await asyncio.sleep(ASK_AGAIN_S)


def _ended(got: manager_pb2.GetVariableResponse) -> Ended:
    ready = got.variable.state == common_pb2.VARIABLE_STATE_READY
    return Ended(got.variable, got.value if ready else None, got.usage)


def _record_of(end: Ended) -> FinalRecord:
    variable = end.variable
    if end.text is not None:
        return FinalRecord(variable.id, text=end.text)
    if variable.state == common_pb2.VARIABLE_STATE_FAILED:
        return FinalRecord(variable.id, failure=variable.failure)
    return FinalRecord(variable.id, cancelled=variable.failure.message or "cancelled")


def _check_end(end: Ended, offset_bytes: int) -> None:
    if end.text is None or not offset_bytes:
        return
    data = end.text.encode()
    if offset_bytes > len(data):
        raise _no_offset(offset_bytes, f"lies beyond the value's {len(data)} bytes", end.variable.id)
    if offset_bytes < len(data) and data[offset_bytes] & 0xC0 == 0x80:
        raise _no_offset(offset_bytes, "lies within a character", end.variable.id)


def _no_offset(offset_bytes: int, reason: str, variable_id: str) -> Fault:
    return Fault(
        errors.INVALID_REQUEST,
        f"offset {offset_bytes} {reason}; use an id that the stream sent",
        field="Last-Event-ID",
        variable_id=variable_id,
    )
