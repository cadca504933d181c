"""Engines: they run programs as the real ones do, die, are slow, and go on when they were given up."""

from __future__ import annotations

from dataclasses import replace

from parrot_manager.core import commands, events
from parrot_manager.core.model import Engine, Failure, Load, Ref, SharedContext
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from tests.simulation.bus import Bus, Writer
from tests.simulation.dice import Dice
from tests.simulation.kernel import Clock, Process, Signal, sleep
from tests.simulation.links import Down, Ended, Epochs, Fenced, Link, Registered, Registration, Up
from tests.simulation.program import Program, run
from tests.simulation.record import Record
from tests.simulation.speakers import Speakers, shard_of_ref

HEARTBEAT_MS = 2_000
REGISTER_MS = 3_000


class SimEngine:
    """One model server, life after life.

    Attributes:
        gone: its last life is over.
    """

    def __init__(self, clock: Clock, bus: Bus, dice: Dice, record: Record, engine: Engine) -> None:
        self.clock = clock
        self.bus = bus
        self.dice = dice
        self.record = record
        self.engine = engine
        self.slowness = 1
        self.gone = False
        self.start()

    @property
    def name(self) -> str:
        """Its id."""
        return self.engine.id

    def start(self) -> None:
        """Begins anew, with nothing."""
        self.process = Process(self.clock, self.name)
        self.programs: dict[Ref, Program] = {}
        self.contexts: dict[str, SharedContext] = {}
        self.links: dict[str, Link] = {}
        self.speakers = Speakers()
        self.writer = Writer(self.name, {})
        self.draining = False
        self._disowned: dict[Ref, None] = {}
        self._named: dict[Link, tuple[Ref, ...]] = {}
        self._running: dict[Ref, None] = {}
        self._waiting: list[tuple[int, int, Program]] = []
        self._freed = Signal()
        self._load = Load()
        self.process.after(HEARTBEAT_MS, self._beat)

    def kill(self, notice_ms: int) -> None:
        """Dies; managers hear of it within `notice_ms`."""
        self.record.note(self.name, "dies")
        self.process.kill()
        for program in self.programs.values():
            program.process.kill()
        # Its memory is gone, whether or not it begins anew before the run is over.
        self.programs.clear()
        self.contexts.clear()
        for link in self.links.values():
            link.cut(manager_notices_ms=self.dice.between(0, notice_ms), engine_notices_ms=0)
        self.links.clear()

    def freeze(self, for_ms: int) -> None:
        """Stands still for a while."""
        self.record.note(self.name, "freezes for", for_ms)
        for process in (self.process, *(program.process for program in self.programs.values())):
            process.freeze(for_ms)

    def attach(self, manager_id: str, link: Link) -> None:
        """Registers with a manager over a new stream; `link` has no other user yet."""
        self.links[manager_id] = link
        link.on_down, link.lost_down = self._take, self._unlink
        named = self._named[link] = (*self.programs, *self.speakers.unsent)
        link.up(Registration(self.engine, named, tuple(self.contexts.values()), self.process))
        self.process.after(REGISTER_MS, self._give_up_dialling, link)

    def attached(self, manager_id: str) -> bool:
        """Whether it has a stream to a manager, or dials."""
        return manager_id in self.links

    def reaches(self, manager_id: str) -> bool:
        """Whether a manager hears it."""
        link = self.speakers.links.get(manager_id)
        return link is not None and not link.broken

    def drain(self) -> None:
        """Takes nothing new."""
        self.draining = True
        self.speakers.tell_all(events.EngineDraining(self.name, 0))

    async def slot(self, program: Program) -> None:
        """Waits for a place in the batch; the most urgent comes first."""
        entry = (program.command.priority, program.serial, program)
        self._waiting.append(entry)
        self._waiting.sort(key=lambda waiting: waiting[:2])
        while len(self._running) >= self.engine.capacity or self._waiting[0] is not entry:
            await self._freed.wait()
        self._waiting.pop(0)
        self._running[program.ref] = None
        self._freed.notify()

    def report(self, ref: Ref, event: Up) -> None:
        """Tells the manager that serves an attempt's session."""
        self.speakers.report(shard_of_ref(ref), event)

    def refused(self, shard: int) -> None:
        """The bus refused a write: all that runs of that shard is given up, and its marks are asked for."""
        for ref in self._of_shard(shard):
            self._give_up(ref)
        self.speakers.tell(shard, Fenced(shard))

    def share(self, share: commands.Share) -> None:
        """Keeps a prefix as a shared context."""
        if share.prefix_hash not in self.contexts:
            made = SharedContext(share.prefix_hash, share.prefix_hash, 64 * share.pieces, True)
            self.contexts[share.prefix_hash] = made
            self.speakers.tell_all(events.ContextsChanged(self.name, 0, (made,), ()))

    def _take(self, link: Link, message: Down) -> None:
        if isinstance(message, Registered):
            self.speakers.links[message.manager_id] = link
            self._hear(link, message.epochs, self._named.pop(link))
        elif isinstance(message, Epochs):
            self._hear(link, message)
        elif isinstance(message, commands.Dispatch):
            self._run(link, message)
        elif isinstance(message, commands.Cancel):
            self._cancel(link, message.ref)
        elif isinstance(message, commands.Adopt):
            self._adopt(link, message.refs)
        elif isinstance(message, commands.FreeContexts):
            self._free(message.context_ids)

    def _hear(self, link: Link, epochs: Epochs, named: tuple[Ref, ...] | None = None) -> None:
        """Takes up the shards a manager says it serves; what runs under other marks is given up."""
        manager_id = next(name for name, known in self.links.items() if known is link)
        for shard, lease, fence in epochs.marks:
            if not self.speakers.speak(manager_id, shard, lease):
                continue
            other = self.writer.epochs.get(shard, fence) != fence
            self.writer.epochs[shard] = fence
            for ref in self._of_shard(shard):
                if other or (named is not None and ref not in named):
                    self._give_up(ref)
        self.speakers.flush()
        self._tell_again(link, named or ())

    def _tell_again(self, link: Link, named: tuple[Ref, ...]) -> None:
        """The ends of what a manager was told is still to be reported: another may have taken them."""
        for ref in named:
            end = self.speakers.end_of(ref)
            if end is not None and self.speakers.speaks(link, shard_of_ref(ref)):
                link.up(end)

    def _of_shard(self, shard: int) -> list[Ref]:
        return [ref for ref in self.programs if shard_of_ref(ref) == shard]

    def _give_up(self, ref: Ref) -> None:
        self._stop(ref)
        why = Failure.of(errors.ENGINE_LOST, "the engine stopped it")
        self.report(ref, Ended(ref, events.AttemptFailed(ref, why)))

    def _run(self, link: Link, command: commands.Dispatch) -> None:
        ref = command.call.ref
        known = ref in self.programs or ref in self._disowned
        if known or not self.speakers.speaks(link, shard_of_ref(ref)):
            return
        program = self.programs[ref] = Program(Process(self.clock, self.name), command)
        program.process.awake_ms = self.process.awake_ms
        program.process.spawn(self._execute, program)

    async def _execute(self, program: Program) -> None:
        try:
            event: events.AttemptDone | events.AttemptFailed = await run(self, program)
        except Fault as fault:
            # What it wrote lies on the bus before anybody hears that it failed.
            await sleep(max(0, self.writer.arrived_ms - self.clock.now_ms))
            event = events.AttemptFailed(program.ref, Failure.of(fault.kind, fault.message))
        self._stop(program.ref)
        self.report(program.ref, Ended(program.ref, event))

    def _cancel(self, link: Link, ref: Ref) -> None:
        if self.speakers.speaks(link, shard_of_ref(ref)):
            self._stop(ref)
            self.report(ref, Ended(ref, None))

    def _stop(self, ref: Ref) -> None:
        program = self.programs.pop(ref, None)
        if program is not None:
            program.process.kill()
            self._running.pop(ref, None)
            self._waiting = [entry for entry in self._waiting if entry[2] is not program]
            self._freed.notify()

    def _adopt(self, link: Link, refs: tuple[Ref, ...]) -> None:
        refs = tuple(ref for ref in refs if self.speakers.speaks(link, shard_of_ref(ref)))
        ends = {ref: self.speakers.end_of(ref) for ref in refs if self.speakers.end_of(ref) is not None}
        gone = tuple(ref for ref in refs if ref not in self.programs and ref not in ends)
        self._disowned.update(dict.fromkeys(gone))
        link.up(events.EngineAdopted(self.name, 0, tuple(ref for ref in refs if ref not in gone), gone))
        for end in ends.values():
            if end is not None:
                link.up(end)

    def _free(self, context_ids: tuple[str, ...]) -> None:
        gone = tuple(name for name in context_ids if self.contexts.pop(name, None) is not None)
        if gone:
            self.speakers.tell_all(events.ContextsChanged(self.name, 0, (), gone))

    def _give_up_dialling(self, link: Link) -> None:
        """A manager that does not answer is dialled again."""
        if link in self._named:
            link.cut(manager_notices_ms=0, engine_notices_ms=0)

    def _unlink(self, link: Link) -> None:
        self._named.pop(link, None)
        for links in (self.links, self.speakers.links):
            for name in [name for name, known in links.items() if known is link]:
                del links[name]

    def _beat(self) -> None:
        load = replace(Load(), running=len(self._running), waiting=len(self._waiting), step_ms=20.0)
        if load != self._load:
            self._load = load
            self.speakers.tell_all(events.EngineReported(self.name, 0, load))
        self.process.after(HEARTBEAT_MS, self._beat)
