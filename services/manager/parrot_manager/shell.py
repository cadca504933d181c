"""Around the state machine: feeds it what happens and carries its commands out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Final

import structlog

from parrot_manager import clock
from parrot_manager.core.commands import Arm, Changes, Command, Forget
from parrot_manager.core.events import (
    DrainStarted,
    Event,
    SessionRestored,
    Timer,
    TimerFired,
    TimerKind,
)
from parrot_manager.core.machine import Machine
from parrot_manager.effects import Effects
from parrot_manager.links import Links
from parrot_manager.outbox import Outbox
from parrot_manager.settings import ManagerSettings
from parrot_manager.spans import CallSpans
from parrot_manager.store.base import Store
from parrot_manager.tasks import Tasks
from parrot_manager.timers import Timers
from parrot_manager.upkeep import run_upkeep
from parrot_manager.values import Values
from parrot_manager.waiters import Waiters
from parrot_runtime.values.bus import Bus

FORGET_AGAIN_MS: Final = 10_000
FLUSH_S: Final = 5.0
RECENT_MS: Final = 120_000
"""Sessions that ended so shortly before a start are told of again: the bus may not have heard."""

log = structlog.get_logger()


@asynccontextmanager
async def running(settings: ManagerSettings, store: Store, bus: Bus) -> AsyncIterator[Shell]:
    """A manager that has taken up what the store holds. Leaving the block stops it where it stands."""
    async with asyncio.TaskGroup() as group:
        shell = Shell(settings, store, Values(bus), Tasks(group))
        try:
            await shell.recover()
            shell.tasks.spawn(run_upkeep(store, shell.values, settings), "upkeep")
            yield shell
        finally:
            shell.timers.close()
            shell.tasks.cancel_all()


class Shell:
    """The machine and what it needs. `apply` never waits; what it causes runs behind it.

    Attributes:
        locks: client writes to a session take turns.
        stopping: the drain is over; streams that end now mean nothing.
    """

    def __init__(self, settings: ManagerSettings, store: Store, values: Values, tasks: Tasks) -> None:
        self.settings = settings
        self.store = store
        self.values = values
        self.tasks = tasks
        self.machine = Machine(settings.policy)
        self.links = Links()
        self.spans = CallSpans()
        self.waiters = Waiters()
        self.timers = Timers(self._on_timer)
        self.locks: dict[str, asyncio.Lock] = {}
        self.stopping = False
        self._effects = Effects(self)
        self._outboxes: dict[str, Outbox] = {}

    @property
    def draining(self) -> bool:
        """Whether the manager is about to stop."""
        return self.machine.state.draining

    def apply(self, event: Event) -> None:
        """Feeds the machine an event, and sets out to do what it commands."""
        commands = self.machine.step(event, clock.now_ms())
        for session_id, group in groupby(commands, key=_session_of):
            if session_id:
                self._outbox(session_id).put(group)
            else:
                self._do_now(group)

    async def settled(self, session_id: str, timeout_s: float | None = None) -> None:
        """Returns once everything decided about a session is stored.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        outbox = self._outboxes.get(session_id)
        if outbox is not None:
            await outbox.settled(timeout_s or self.settings.store_deadline_s)

    async def recover(self) -> None:
        """Takes up the sessions of the store.

        Raises:
            Fault: `unavailable`, when the store can't be read.
        """
        records = await self.store.load_live(clock.now_ms() - RECENT_MS)
        for record in records:
            self.spans.restored(record.session, record.calls)
            self.apply(SessionRestored(record.session, record.calls, record.variables, record.attempts))
        if records:
            log.info("recovered", sessions=len(records), calls=sum(len(r.calls) for r in records))

    async def drain(self) -> None:
        """Dispatches nothing more, gives running calls `drain_s` to finish, and lets the engines go."""
        self.apply(DrainStarted())
        try:
            async with asyncio.timeout(self.settings.drain_s):
                while self.machine.state.running_attempts():
                    await self._quiet()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log.warning("calls still run", attempts=self.machine.state.running_attempts())
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._quiet()
        except TimeoutError:
            log.warning("stopped before everything was told; the next start tells it")
        self.stopping = True
        self.links.close_all()

    async def _quiet(self) -> None:
        for outbox in list(self._outboxes.values()):
            await outbox.quiet()

    def _outbox(self, session_id: str) -> Outbox:
        outbox = self._outboxes.get(session_id)
        if outbox is None:
            outbox = self._outboxes[session_id] = Outbox(
                session_id,
                self.store,
                self.tasks,
                committed=self._on_committed,
                cancel=self._effects.cancel,
                perform=self._effects.perform,
            )
        return outbox

    def _on_committed(self, changes: Changes) -> None:
        for call in changes.calls:
            if call.state.ended:
                self.spans.ended(call)
        self.waiters.stored(changes)

    def _do_now(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Arm):
                self.timers.arm(command.timer, command.at_ms)
            elif isinstance(command, Forget):
                self._forget(command.session_id)

    def _on_timer(self, timer: Timer) -> None:
        if timer.kind is TimerKind.FORGET and self._busy(timer.id):
            self.timers.arm(timer, clock.now_ms() + FORGET_AGAIN_MS)
        else:
            self.apply(TimerFired(timer))

    def _busy(self, session_id: str) -> bool:
        lock, outbox = self.locks.get(session_id), self._outboxes.get(session_id)
        return (lock is not None and lock.locked()) or (outbox is not None and not outbox.idle)

    def _forget(self, session_id: str) -> None:
        self._outboxes.pop(session_id, None)
        self.locks.pop(session_id, None)
        self.spans.forget(session_id)
        self.waiters.forget(session_id)


def _session_of(command: Command) -> str:
    """Whose outbox a command goes to; empty for those that are carried out at once."""
    return "" if isinstance(command, Arm | Forget) else command.session_id
