"""Around the state machine: feeds it what happens and carries its commands out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from typing import Final
from weakref import WeakValueDictionary

import structlog

from parrot_manager import clock
from parrot_manager.core.commands import Arm, Cancel, Changes, Command, FleetCommand, Forget
from parrot_manager.core.events import (
    DrainStarted,
    Event,
    Timer,
    TimerFired,
    TimerKind,
)
from parrot_manager.core.machine import Machine
from parrot_manager.effects import Effects
from parrot_manager.engine_fences import EngineFences
from parrot_manager.handover import Handover
from parrot_manager.history import Recorder
from parrot_manager.leases import Keeper
from parrot_manager.links import Links
from parrot_manager.marks import Noted
from parrot_manager.metrics import ManagerMetrics
from parrot_manager.outbox import Outbox
from parrot_manager.outboxes import Outboxes, Unstored
from parrot_manager.session_spans import SessionSpans
from parrot_manager.settings import ManagerSettings
from parrot_manager.shards import Shards
from parrot_manager.spans import CallSpans
from parrot_manager.store.base import Store
from parrot_manager.store.leases import Member
from parrot_manager.tasks import Tasks
from parrot_manager.tellings import Tellings
from parrot_manager.timers import Timers
from parrot_manager.upkeep import run_upkeep
from parrot_manager.values import Values
from parrot_manager.waiters import Waiters
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.bus import Bus
from parrot_runtime.version import parrot_version

FORGET_AGAIN_MS: Final = 1_000
FLUSH_S: Final = 5.0
HAND_OVER_S: Final = 10.0

log = structlog.get_logger()


@asynccontextmanager
async def running(
    settings: ManagerSettings, store: Store, bus: Bus, metrics: ManagerMetrics | None = None
) -> AsyncIterator[Shell]:
    """A manager that serves its shards. Leaving the block stops it where it stands."""
    async with asyncio.TaskGroup() as group:
        shell = Shell(settings, store, Values(bus), Tasks(group), metrics or ManagerMetrics())
        try:
            await shell.keeper.start()
            shell.tasks.spawn(run_upkeep(shell.shards, store, shell.values, settings), "upkeep")
            yield shell
        finally:
            shell.timers.close()
            shell.close_outboxes()
            shell.tasks.cancel_all()
            shell.close_history()


class Shell:
    """The machine and what it needs. `apply` never waits; what it causes runs behind it.

    Attributes:
        locks: client writes to a session take turns; each lasts as long as somebody holds or awaits it.
        stopping: the drain is over; streams that end now mean nothing.
    """

    def __init__(
        self, settings: ManagerSettings, store: Store, values: Values, tasks: Tasks, metrics: ManagerMetrics
    ) -> None:
        self.settings = settings
        self.store = store
        self.values = values
        self.tasks = tasks
        self.metrics = metrics
        self.machine = Machine(settings.policy)
        self.me = Member(settings.manager_id, secrets.token_hex(8), settings.address)
        self._handover = Handover(self)
        self.keeper = Keeper(
            store.leases,
            self.me,
            self._handover,
            tasks,
            lease_s=settings.lease_s,
            renew_s=settings.renew_s,
        )
        self.links = Links()
        self.fences = EngineFences(
            values.fences,
            self.links,
            self.shards,
            tasks,
            valid=lambda: self.keeper.valid,
            allowed=self.keeper.until_valid,
        )
        self.tellings = Tellings(
            values.states, tasks, epoch_of=self.shards.epoch_held, allowed=self.keeper.until_valid
        )
        self.spans = CallSpans()
        self._session_spans = SessionSpans(tasks)
        self.noted = Noted()
        self.waiters = Waiters()
        self.timers = Timers(self._on_timer)
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.unstored = Unstored()
        self.stopping = False
        self._recorder = Recorder(settings.history_file, settings.policy) if settings.history_file else None
        self._effects = Effects(self)
        self._outboxes = Outboxes(self._outbox)

    @property
    def shards(self) -> Shards:
        """The shards this manager holds."""
        return self.keeper.shards

    @property
    def draining(self) -> bool:
        """Whether the manager is about to stop."""
        return self.machine.state.draining

    def registered(self, epochs: Iterable[engine_pb2.ShardEpoch] = ()) -> engine_pb2.AttachResponse:
        """What an attached engine is told of the managers, at first and whenever that changes."""
        return engine_pb2.AttachResponse(
            registered=engine_pb2.Registered(
                heartbeat_interval_ms=round(self.settings.heartbeat_s * 1000),
                manager_id=self.me.id,
                manager_addresses=dict.fromkeys([self.me.address, *self.shards.standing.addresses]),
                epochs=epochs,
                parrot_version=parrot_version(),
            )
        )

    def apply(self, event: Event) -> None:
        """Feeds the machine an event, and sets out to do what it commands."""
        now_ms, began_s = clock.now_ms(), time.perf_counter()
        commands = self.machine.step(event, now_ms)
        self.metrics.decided(time.perf_counter() - began_s)
        if self._recorder is not None:
            self._recorder.record(event, now_ms, commands)
        for session_id, group in groupby(commands, key=_session_of):
            if session_id in self.machine.state.sessions:
                self._outboxes.of(session_id).put(group)
            else:
                # Of a session that is not here, nothing is to be stored first.
                self._do_now(group)

    def close_outboxes(self) -> None:
        """Stores nothing more, of what can wait either."""
        self._outboxes.close()

    def close_history(self) -> None:
        """Writes what is left of the history, when one is kept."""
        if self._recorder is not None:
            self._recorder.close()

    async def settled(self, session_id: str, timeout_s: float | None = None) -> None:
        """Returns once everything decided about a session is stored.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        await self._outboxes.settled(session_id, timeout_s or self.settings.store_deadline_s)

    async def quiet(self, session_id: str) -> None:
        """Returns once everything decided about a session is stored, carried out and told.

        Raises:
            Fault: `unavailable`, when that takes too long.
        """
        await self.settled(session_id)
        try:
            async with asyncio.timeout(self.settings.store_deadline_s):
                await self._outboxes.quiet(session_id)
                await self.tellings.quiet(session_id)
        except TimeoutError:
            why = "what was decided is not carried out yet; try again"
            raise Fault(errors.UNAVAILABLE, why, session_id=session_id, retry_after_ms=1000) from None

    async def flushed(self, session_ids: Sequence[str]) -> None:
        """Returns once no write to these sessions is under way, a client's or the machine's."""
        for session_id in session_ids:
            lock = self.locks.get(session_id)
            if lock is not None:
                async with lock:
                    pass
            await self._outboxes.quiet(session_id)

    def released(self, session_id: str) -> None:
        """Drops what is kept beside a session that left the machine."""
        self.timers.disarm_session(session_id)
        self._forget(session_id)

    async def drain(self) -> None:
        """Hands the shards over, and lets the engines go.

        Where no other manager is there to go on, nothing more is dispatched, and running calls get
        `drain_s` to finish.
        """
        if not self.keeper.has_peers:
            await self._run_dry()
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self.keeper.leave()
        except (TimeoutError, Fault) as error:
            log.warning("shards not handed over; their lease ends by itself", error=repr(error))
        self.stopping = True
        self.links.close_all()

    async def _run_dry(self) -> None:
        self.apply(DrainStarted())
        try:
            async with asyncio.timeout(self.settings.drain_s):
                # Without the store their ends can't be recorded: whoever comes finds them at their engines.
                while self.keeper.valid and self.machine.state.running_attempts():
                    await self.keeper.changed(0.02)
        except TimeoutError:
            log.warning("calls still run", attempts=self.machine.state.running_attempts())
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._outboxes.all_quiet()
        except TimeoutError:
            log.warning("stopped before everything was told; the next start tells it")

    def _outbox(self, session_id: str) -> Outbox:
        return Outbox(
            session_id,
            self.store,
            self.tasks,
            committed=partial(self._on_committed, session_id),
            cancel=self._effects.cancel,
            perform=self._effects.perform,
            epoch=self.shards.held.get(shard_of(session_id), 0),
            allowed=self.keeper.until_valid,
            lost=self._on_lost,
            unstored=self.unstored,
        )

    def _on_lost(self, session_id: str, epoch: int) -> None:
        shard = shard_of(session_id)
        if self.shards.holds(shard, epoch):
            self._handover.drop(shard)

    def _on_committed(self, session_id: str, changes: Changes) -> None:
        live = self.machine.state.sessions.get(session_id)
        if live is not None:
            self.tellings.committed(live.session.tenant, session_id, changes)
            if changes.new_calls:
                self.spans.restored(live.session, changes.new_calls)
            if changes.session is not None and changes.session.state.ended:
                self._session_spans.ended(live)
        for call in changes.calls:
            if call.state.ended:
                if live is not None:
                    self.noted.settled(session_id)
                self.spans.ended(call)
        self.metrics.committed(live, changes)
        self.waiters.stored(changes)

    def _do_now(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Arm):
                self.timers.arm(command.timer, command.at_ms)
            elif isinstance(command, Forget):
                self._forget(command.session_id)
            elif isinstance(command, FleetCommand):
                self._effects.tell(command)
            elif isinstance(command, Cancel):
                self._effects.cancel(command)

    def _on_timer(self, timer: Timer) -> None:
        if timer.kind is TimerKind.FORGET and self._busy(timer.id):
            self.timers.arm(timer, clock.now_ms() + FORGET_AGAIN_MS)
        else:
            self.apply(TimerFired(timer))

    def _busy(self, session_id: str) -> bool:
        lock = self.locks.get(session_id)
        writes = (lock is not None and lock.locked()) or not self._outboxes.idle(session_id)
        return writes or self.tellings.speaks(session_id)

    def _forget(self, session_id: str) -> None:
        self._outboxes.forget(session_id)
        self.spans.forget(session_id)
        self.noted.forget(session_id)
        self.waiters.forget(session_id)
        self.tellings.forget(session_id)


def _session_of(command: Command) -> str:
    """Whose outbox a command goes to; empty for those that are carried out at once."""
    return "" if isinstance(command, Arm | Forget | FleetCommand) else command.session_id
