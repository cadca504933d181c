"""A session's events: how it is now, then everything that happens in it, to its end.

They come from the session's log on the bus, to which engines write text and managers what they have stored.
The manager itself is asked whether there is such a session, and again where the log can't tell: when it was
purged, or when what it should have been told was lost.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain, islice
from typing import Final

from parrot_gateway import session_cursor, session_news
from parrot_gateway.closing import GatewayClosing
from parrot_gateway.events import ALIVE, RECONNECT, event_block
from parrot_gateway.gateway import Gateway
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.problems import problem_of
from parrot_gateway.session_cursor import Place, Start
from parrot_gateway.session_news import StateChange
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.session_entries import LaggingError
from parrot_runtime.values.session_fold import Added
from parrot_runtime.values.session_log import ReadValue, SessionLog, Told
from parrot_runtime.values.states import ENDED, has_ended
from parrot_runtime.values.subjects import SessionSubjects

OWN_BYTES: Final = 64 << 20
"""What is kept of a log for one reader who goes on from further back than the others' log reaches."""
TOGETHER: Final = 64
"""Events of a snapshot that are sent at once."""
TOLD_WITHIN_S: Final = 2.0
"""A session that its manager says has ended is told of so soon, unless it never is."""
_COUNTED: Final = ("call", "block", "variable")
ASK_AGAIN_S: Final = 60.0
"""How often the manager is asked about a session that is silent."""


@asynccontextmanager
async def session_events(
    gateway: Gateway, session_id: str, last_event_id: str
) -> AsyncIterator[AsyncIterator[bytes]]:
    """A session's events from after `last_event_id`; with none, how it is now comes first.

    Raises:
        Fault: `not_found`, `unavailable`; `invalid_request`, when the session has no such event;
            `expired_cursor`, when what followed it is gone.
    """
    place = session_cursor.place_of(last_event_id, session_id)
    found = await gateway.manager.get_session(session_id, brief=True)
    ended = _has_ended(found.session.state)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(gateway.logs.session(gateway.tenant, session_id))
        if ended and not log.last:
            yield await _purged(gateway, session_id, place)
            return
        reader = _Reader(gateway, log, session_id, doubted=ended)
        if place is None:
            yield reader.blocks(None)
            return
        start = await session_cursor.find(log, place, session_id)
        if start is None:
            reader.log = await stack.enter_async_context(_own(gateway, session_id))
            reader.is_alone = True
            start = await session_cursor.find(reader.log, place, session_id)
        if start is None:
            raise session_cursor.expired(session_id)
        yield reader.blocks(start)


def stored_values(manager: ManagerClient) -> ReadValue:
    """Reads values that are ready, as whoever's they are."""

    async def read(names: SessionSubjects, variable_id: str) -> bytes:
        got = await manager.of(names.tenant).get_variable(names.session_id, variable_id)
        return got.value.encode()

    return read


async def _purged(gateway: Gateway, session_id: str, place: Place | None) -> AsyncIterator[bytes]:
    """The events of a session that has ended and is off the bus: only its manager knows of it."""
    if place is not None and not place.is_beginning:
        raise session_cursor.expired(session_id)
    told = session_news.changes_of(await gateway.manager.get_session(session_id))

    async def blocks() -> AsyncIterator[bytes]:
        yield ALIVE
        event_id = Place(1, 0).event_id(session_id)
        for block in _snapshot(told, (), event_id) if place is None else ():
            yield block
        yield event_block("done", {"state": told[0].state}, event_id)

    return blocks()


@asynccontextmanager
async def _own(gateway: Gateway, session_id: str) -> AsyncIterator[SessionLog]:
    log = gateway.logs.alone(gateway.tenant, session_id, OWN_BYTES)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


class _Reader:
    """One reader's way through a log.

    Attributes:
        is_alone: nobody else reads this log.
        doubted: the manager says that the session has ended; the log should be told so at any moment.
    """

    def __init__(self, gateway: Gateway, log: SessionLog, session_id: str, *, doubted: bool) -> None:
        self.log = log
        self.is_alone = False
        self.doubted = doubted
        self._gateway = gateway
        self._session_id = session_id
        self._asked_at = time.monotonic()

    async def blocks(self, start: Start | None) -> AsyncIterator[bytes]:
        """What the reader is sent; without a start, how it is now comes first."""
        # Some proxies hold the headers back until there is a body.
        yield ALIVE
        try:
            if start is None:
                number, parts = self.log.entries.end, 0
                for block in self._snapshot():
                    yield block
            else:
                number, parts = start.number, start.parts
            async for block in self._news(number, parts):
                yield block
        except GatewayClosing:
            yield RECONNECT
        except LaggingError:
            self._gateway.metrics.reader_cut()
            yield event_block("error", problem_of(_too_slow(self._session_id)))
        except Fault as fault:
            yield event_block("error", problem_of(fault))

    async def _news(self, number: int, parts: int) -> AsyncIterator[bytes]:
        while True:
            entry = self.log.entries.get(number)
            if entry is not None:
                if block := b"".join((await self.log.parts(entry))[parts:]):
                    yield block
                number, parts = number + 1, 0
                if self.is_alone:
                    self.log.entries.free(number)
            elif self.log.fold.session_state in ENDED["session"]:
                yield self._done(self.log.fold.session_state)
                return
            elif not await self._is_there(number):
                yield ALIVE
                missed = await self._missed()
                if missed:
                    yield b"".join(session_news.as_it_is(missed))
                    yield self._done(missed[0].state)
                    return

    async def _is_there(self, number: int) -> bool:
        """Waits for an entry; False: there is none for so long that something is to be said."""
        patience_s = self._gateway.settings.heartbeat_s
        if self.doubted:
            patience_s = min(TOLD_WITHIN_S, patience_s)
        await self._gateway.closing.interruptible(self.log.wait(number, patience_s))
        return number < self.log.entries.end

    def _snapshot(self) -> Iterator[bytes]:
        fold = self.log.fold
        states = list(fold.states.values())
        if not fold.session_state:
            states.append(StateChange(kind="session", id=self._session_id, state="open"))
        return _snapshot(states, fold.texts(), self._here())

    def _done(self, state: str) -> bytes:
        return event_block("done", {"state": state}, self._here())

    def _here(self) -> str:
        return Place(self.log.last + 1, 0).event_id(self._session_id)

    async def _missed(self) -> list[StateChange]:
        """Of a session that has ended, what the log was not told and won't be; the session first."""
        if not self.doubted:
            if time.monotonic() < self._asked_at + ASK_AGAIN_S:
                return []
            self._asked_at = time.monotonic()
            found = await self._ask(brief=True)
            self.doubted = found is not None and has_ended(found[0])
            return []
        found = await self._ask(brief=False)
        if found is None:
            return []
        self.doubted = has_ended(found[0])
        known = self.log.fold.states
        missed = [change for change in found[1:] if known.get((change.kind, change.id)) != change]
        return [found[0], *missed] if self.doubted else []

    async def _ask(self, *, brief: bool) -> list[StateChange] | None:
        try:
            manager = self._gateway.manager
            found = await manager.get_session(self._session_id, brief=brief, patient=False)
        except Fault as fault:
            if fault.kind is errors.UNAVAILABLE:
                return None
            raise
        return session_news.changes_of(found)


def _snapshot(states: Sequence[StateChange], texts: Iterable[Added], event_id: str) -> Iterator[bytes]:
    """How things are, the session first; the id at its end is the place of what follows."""
    counts = {f"{kind}s": sum(change.kind == kind for change in states) for kind in _COUNTED}
    news: list[Told] = [*sorted(states, key=lambda change: change.kind != "session"), *texts]
    return chain(_batches(session_news.as_it_is(news)), [event_block("snapshot", counts, event_id)])


def _batches(blocks: Iterable[bytes]) -> Iterator[bytes]:
    left = iter(blocks)
    while batch := b"".join(islice(left, TOGETHER)):
        yield batch


def _has_ended(state: common_pb2.SessionState.ValueType) -> bool:
    word = common_pb2.SessionState.Name(state).partition("_STATE_")[2].lower()
    return word in ENDED["session"]


def _too_slow(session_id: str) -> Fault:
    return Fault(
        errors.SLOW_READER,
        "events came faster than they were read, and are not kept for longer; reconnect with the last id",
        session_id=session_id,
        retry_after_ms=1000,
    )
