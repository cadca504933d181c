"""Tells on the bus what became of the things of a session, once that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from parrot_manager import told
from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.store.base import SessionRecord
from parrot_manager.tasks import Tasks
from parrot_proto.values.v1 import values_pb2
from parrot_runtime import limits
from parrot_runtime.errors import Fault
from parrot_runtime.values.states import StateSubject, SupersededError, Telling
from parrot_runtime.values.subjects import SessionSubjects

RETRY_S: Final = 0.25
MESSAGE_BYTES: Final = limits.PART_BYTES // 2
"""A message exceeds it by one change at most, which is far smaller."""
AT_ONCE: Final = 64
"""Messages under way: a manager that takes thousands of sessions over has something to say of each."""

log = structlog.get_logger()


class Tellings:
    """Each session's states, told one message after another. What piles up meanwhile goes out together."""

    def __init__(
        self,
        subject: StateSubject,
        tasks: Tasks,
        *,
        epoch_of: Callable[[str], int | None],
        allowed: Callable[[], Awaitable[None]],
    ) -> None:
        """`epoch_of`: under which a session's shard is held, None: it is not.

        `allowed`: returns once this manager may speak for its shards.
        """
        self._subject = subject
        self._tasks = tasks
        self._epoch_of = epoch_of
        self._allowed = allowed
        self._tellings: dict[str, Telling] = {}
        self._speaking: dict[str, asyncio.Event] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    def accepted(self, tenant: str, event: CallsAccepted) -> None:
        """A batch is stored."""
        self._add(tenant, event.session_id, told.of_batch(event))

    def committed(self, tenant: str, session_id: str, changes: Changes) -> None:
        """Changes are stored."""
        self._add(tenant, session_id, told.of_changes(changes))

    def restored(self, record: SessionRecord) -> None:
        """A session was taken over: what its last manager may not have told any more."""
        session = record.session
        telling = self._telling(session.id)
        if telling is not None:
            telling.restore(told.of_record(record))
            self._speak(session.tenant, session.id)

    async def quiet(self, session_id: str) -> None:
        """Returns once nothing of a session is still to be told, or on its way."""
        while (spoken := self._speaking.get(session_id)) is not None:
            await spoken.wait()

    def speaks(self, session_id: str) -> bool:
        """Whether something of a session is still to be told."""
        return session_id in self._speaking

    def forget(self, session_id: str) -> None:
        """Drops a session, with what was not told of it: it has left this manager."""
        self._tellings.pop(session_id, None)

    def _add(self, tenant: str, session_id: str, changes: list[values_pb2.StateChange]) -> None:
        telling = self._telling(session_id) if changes else None
        if telling is not None:
            telling.add(changes)
            self._speak(tenant, session_id)

    def _telling(self, session_id: str) -> Telling | None:
        found = self._tellings.get(session_id)
        epoch = self._epoch_of(session_id) if found is None else None
        if epoch is not None:
            found = self._tellings[session_id] = Telling(epoch, MESSAGE_BYTES)
        return found

    def _speak(self, tenant: str, session_id: str) -> None:
        if session_id not in self._speaking:
            self._speaking[session_id] = asyncio.Event()
            self._tasks.spawn(self._tell_all(SessionSubjects(tenant, session_id)), f"tell {session_id}")

    async def _tell_all(self, names: SessionSubjects) -> None:
        session_id = names.session_id
        try:
            while (telling := self._tellings.get(session_id)) is not None and telling.is_due:
                await self._allowed()
                try:
                    async with self._places:
                        await self._tell(names, telling)
                except Fault as fault:
                    log.warning("states not told yet", session_id=session_id, reason=fault.message)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._speaking.pop(session_id).set()

    async def _tell(self, names: SessionSubjects, telling: Telling) -> None:
        if telling.after is None:
            if not telling.found(await self._subject.last(names)):
                log.info("another manager tells of the session", session_id=names.session_id)
                # Not one that began since, when the shard came back.
                if self._tellings.get(names.session_id) is telling:
                    self.forget(names.session_id)
            return
        try:
            telling.told(await self._subject.append(names, telling.message(), telling.after))
        except SupersededError:
            telling.after = None
