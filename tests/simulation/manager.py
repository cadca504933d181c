"""A manager: the real machine in a simulated shell. It holds leases, dies, sleeps, and comes back late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from parrot_manager.core import commands, events
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import Ref
from parrot_manager.core.state import Policy
from parrot_manager.history import Step
from parrot_manager.shards import Shards
from parrot_runtime.ids import shard_of
from tests.simulation.audit import Audit
from tests.simulation.bus import Bus
from tests.simulation.dice import Dice
from tests.simulation.effects import Effects
from tests.simulation.fences import Fences
from tests.simulation.intake import Intake
from tests.simulation.kernel import Clock, Entry, Process, Signal, sleep
from tests.simulation.leases import Holder
from tests.simulation.links import Link
from tests.simulation.outbox import Outbox
from tests.simulation.record import Record
from tests.simulation.reports import Reports
from tests.simulation.store import SimStore
from tests.simulation.tellings import StateLog, Tellings

FORGET_AGAIN_MS = 10_000
HAND_OVER_MS = 5_000
RETAIN_MS = 20_000
RESTART_MS = 500


@dataclass(frozen=True, slots=True)
class Site:
    """What managers share."""

    clock: Clock
    store: SimStore
    bus: Bus
    states: StateLog
    record: Record
    audit: Audit


class SimManager:
    """One manager, life after life: the counterpart of `parrot_manager.shell`.

    Attributes:
        links: the engines' streams, by engine; those of them the machine knows of are `joined` too.
        instances: the process that attached last under each engine's id.
        writing: sessions a client's write is under way in; such writes take turns.
        histories: of each life, when they are kept.
    """

    def __init__(self, site: Site, dice: Dice, name: str) -> None:
        self.clock = site.clock
        self.store = site.store
        self.bus = site.bus
        self.states = site.states
        self.record = site.record
        self.audit = site.audit
        self.dice = dice
        self.name = name
        self.policy = Policy(retain_ms=RETAIN_MS)
        self.lives = 0
        self.keeps_history = False
        self.histories: list[list[Step]] = []
        self.start()

    def start(self) -> None:
        """Begins anew, on what the store holds."""
        self.lives += 1
        self.histories.append([])
        self.process = Process(self.clock, self.name)
        self.machine = Machine(self.policy)
        self.shards = Shards()
        self.links: dict[str, Link] = {}
        self.joined: dict[str, Link] = {}
        self.instances: dict[str, Process] = {}
        self.attachments = 0
        self.writing: dict[str, Signal] = {}
        self.changed = Signal()
        self.outboxes: dict[str, Outbox] = {}
        self.timers: dict[events.Timer, Entry] = {}
        self.fences = Fences(self)
        self.effects = Effects(self)
        self.reports = Reports(self)
        self.intake = Intake(self)
        self.tellings = Tellings(self)
        self.audit.manager_started(self.name)
        self.holder = Holder(self, f"{self.name}/{self.lives}")
        self.process.spawn(self.holder.run)

    def kill(self) -> None:
        """Dies."""
        self.record.note(self.name, "dies")
        self.process.kill()
        for link in self.links.values():
            link.cut(manager_notices_ms=0, engine_notices_ms=self.dice.between(0, 1_500))
        self.links.clear()

    def restart(self) -> None:
        """Ends by itself; whoever looks after it starts it anew."""
        self.kill()
        Process(self.clock, "supervisor").after(RESTART_MS, self._start_if_dead)

    def _start_if_dead(self) -> None:
        if not self.process.alive:
            self.start()

    def freeze(self, for_ms: int) -> None:
        """Stands still for a while; when it goes on it knows nothing of that."""
        self.record.note(self.name, "freezes for", for_ms)
        self.process.freeze(for_ms)

    def apply(self, event: events.Event) -> None:
        """Feeds the machine an event, and sets out to do what it commands."""
        told = self.machine.step(event, self.clock.now_ms)
        if self.keeps_history:
            self.histories[-1].append(Step(event, self.clock.now_ms, tuple(told)))
        self.record.note(self.name, event, "=>", told)
        self.audit.stepped(self.name, self.machine, event, told, self._truly_holds)
        for session_id, group in groupby(told, key=_session_of):
            if session_id in self.machine.state.sessions:
                self.outbox(session_id).put(group)
            else:
                self._do_now(group)
        self.audit.armed(self.machine, event, self.timers)

    def _truly_holds(self, session_id: str) -> bool:
        shard = shard_of(session_id)
        return self.shards.holds(shard, self.store.epoch_of(shard))

    def link(self, engine_id: str) -> Link | None:
        """The way to an engine that is attached."""
        link = self.links.get(engine_id)
        return link if link is not None and self.joined.get(engine_id) is link else None

    def is_running(self, ref: Ref) -> bool:
        """Whether an attempt is a call's present one."""
        live = self.machine.state.sessions.get(ref.session_id)
        attempt = live.attempts.get(ref.call_id) if live is not None else None
        return attempt is not None and attempt.ref == ref

    def outbox(self, session_id: str) -> Outbox:
        """A session's commands on their way."""
        found = self.outboxes.get(session_id)
        if found is None:
            found = self.outboxes[session_id] = Outbox(self, session_id)
        return found

    def drop(self, shard: int) -> None:
        """Lets go of a shard as it stands: another serves it now."""
        self.record.note(self.name, "drops shard", shard)
        self.shards.drop([shard])
        self.fences.forget(shard)
        for session_id in self._sessions(shard):
            self.apply(events.SessionReleased(session_id))
            self._forget(session_id)

    async def hand_over(self, shard: int) -> None:
        """Finishes what is under way in a shard, and lets go of it."""
        self.record.note(self.name, "hands shard over", shard)
        self.shards.stop_serving([shard])
        epoch = self.shards.held.get(shard)
        until_ms = self.clock.now_ms + HAND_OVER_MS
        while any(map(self._busy, self._sessions(shard))) and self.clock.now_ms < until_ms:
            await sleep(20)
        if epoch is not None and self.shards.holds(shard, epoch):
            self.drop(shard)

    def _sessions(self, shard: int) -> list[str]:
        return [name for name in self.machine.state.sessions if shard_of(name) == shard]

    def _do_now(self, told: Iterable[commands.Command]) -> None:
        for command in told:
            if isinstance(command, commands.Arm):
                self._arm(command.timer, command.at_ms)
            elif isinstance(command, commands.Forget):
                self._forget(command.session_id)
            elif isinstance(command, commands.FreeContexts | commands.ExpectUses | commands.Adopt):
                link = self.link(command.engine_id)
                if link is not None:
                    link.down(command)
            elif isinstance(command, commands.Cancel):
                self.effects.cancel(command)

    def _arm(self, timer: events.Timer, at_ms: int) -> None:
        before = self.timers.pop(timer, None)
        if before is not None:
            before.cancel()
        self.timers[timer] = self.process.after(max(0, at_ms - self.clock.now_ms), self._ring, timer)

    def _ring(self, timer: events.Timer) -> None:
        del self.timers[timer]
        if timer.kind is events.TimerKind.FORGET and self._busy(timer.id):
            self._arm(timer, self.clock.now_ms + FORGET_AGAIN_MS)
        else:
            self.apply(events.TimerFired(timer))

    def _busy(self, session_id: str) -> bool:
        outbox = self.outboxes.get(session_id)
        return session_id in self.writing or (outbox is not None and not outbox.idle)

    def _forget(self, session_id: str) -> None:
        self.tellings.forget(session_id)
        outbox = self.outboxes.pop(session_id, None)
        if outbox is not None:
            outbox.close()
        for timer in [timer for timer in self.timers if timer.id.split("/")[0] == session_id]:
            self.timers.pop(timer).cancel()


def _session_of(command: commands.Command) -> str:
    return command.session_id if isinstance(command, commands.Persist | commands.Effect) else ""
