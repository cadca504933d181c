"""One run: everything there is, drawn from a seed, until all of it has come to rest."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_manager.core.model import Engine
from parrot_manager.store.base import SessionRecord
from tests.simulation.apps import plan
from tests.simulation.audit import AMPLE_TOKENS, Audit
from tests.simulation.bus import Bus
from tests.simulation.client import Client
from tests.simulation.dice import Dice
from tests.simulation.ends import check_ends, check_replay, check_rest, check_stopped
from tests.simulation.engine import SimEngine
from tests.simulation.faults import FAULTS_MS, Faults, Weather
from tests.simulation.kernel import START_MS, Clock, Process
from tests.simulation.leases import SHARDS
from tests.simulation.links import Link
from tests.simulation.manager import SimManager, Site
from tests.simulation.quotas import Quotas
from tests.simulation.reader import TENANT, at_once
from tests.simulation.record import Record
from tests.simulation.store import SimStore
from tests.simulation.tellings import StateLog, check_told
from tests.simulation.violations import promise

MODELS = ("m", "n")
FORGOTTEN = 4
"""One seed in so many waits until its sessions have left memory."""
ATTACH_MS = 400
LOOK_MS = 250
SETTLE_MS = 150_000
"""Once nothing goes wrong any more, everything accepted ends within that."""
STOP_MS = 300
REST_MS = 2_000
FORGOTTEN_MS = 45_000
REPLAYED = 8
"""One seed in so many is played again, machine by machine."""


@dataclass(slots=True)
class Net:
    """What is lost between clients and managers."""

    loss: float = 0.0


class World:
    """A run.

    Attributes:
        isolated: until when an engine and a manager don't reach each other.
    """

    def __init__(self, seed: int, *, keep_record: bool = False) -> None:
        self.seed = seed
        self.dice = Dice(str(seed))
        self.clock = Clock()
        self.record = Record(self.clock, keep=keep_record)
        self.outside = Process(self.clock, "outside")
        self.net = Net()
        self.isolated: dict[tuple[str, str], int] = {}
        self.audit = Audit(self.clock)
        self.bus = Bus(Process(self.clock, "bus"), self.dice.apart("bus"), self.record)
        self.store = SimStore(self.clock, self.dice.apart("store"), self.audit)
        self.states = StateLog(self.bus, self.dice.apart("states"))
        self.managers = [self._manager(number) for number in range(self.dice.pick([1, 2, 2, 3]))]
        self.engines = [self._engine(number) for number in range(self.dice.pick([1, 2, 2, 3]))]
        models = [engine.engine.model for engine in self.engines]
        counts = range(self.dice.pick([1, 2, 3, 3]))
        apps = [plan(self.dice.apart(f"app {n}"), n, SHARDS, models) for n in counts]
        self.quotas = Quotas(self.dice.apart("quotas"), apps, self.store.rows)
        self.store.written = self.quotas.check
        self.clients = [Client(self, app) for app in apps]
        self.weather = Weather.draw(self.dice.apart("weather"))

    def run(self) -> None:
        """Plays it.

        Raises:
            Violation: a promise was broken.
        """
        for manager in self.managers:
            manager.keeps_history = self.seed % REPLAYED == 0
        faults = Faults(self)
        faults.plan(self.weather)
        for engine in self.engines:
            self.outside.after(0, self._keep_attached, engine)
        for client in self.clients:
            client.start()
        self.clock.run(START_MS + FAULTS_MS)
        faults.end()
        self._settle()
        check_ends(self)
        self._rest()
        for manager in self.managers:
            check_replay(manager.policy, manager.histories)

    def stored(self, session_id: str) -> SessionRecord | None:
        """What the store has of a session."""
        return at_once(self.store.rows.load_session(TENANT, session_id))

    def serving(self, shard: int) -> SimManager | None:
        """The manager a gateway asks about a shard."""
        for manager in self.managers:
            if manager.process.alive and shard in manager.shards.served:
                return manager
        return None

    def replace(self, gone: SimEngine) -> None:
        """An engine like one that is gone for ever begins."""
        engine = self._engine(len(self.engines), gone.engine.model)
        self.engines.append(engine)
        self._keep_attached(engine)

    def _settle(self) -> None:
        until_ms = self.clock.now_ms + SETTLE_MS
        while not self._ended:
            promise(self.clock.now_ms < until_ms, "never ends", self._open())
            self.clock.run(self.clock.now_ms + LOOK_MS)

    def _rest(self) -> None:
        """What was cancelled stops; sessions are closed, let go of what they held, and are forgotten."""
        self.clock.run(self.clock.now_ms + STOP_MS)
        check_stopped(self)
        for client in self.clients:
            client.finish()
        self.clock.run(self.clock.now_ms + REST_MS)
        check_rest(self)
        self.quotas.check_rest()
        check_told(self)
        if self.seed % FORGOTTEN == 0:
            self.clock.run(self.clock.now_ms + FORGOTTEN_MS)
            kept = [
                (m.name, list(m.machine.state.sessions)) for m in self.managers if m.machine.state.sessions
            ]
            promise(not kept, "session not forgotten", str(kept))

    @property
    def _ended(self) -> bool:
        """All that was submitted has its end, nobody stands still, and nobody is out of reach."""
        processes = [manager.process for manager in self.managers]
        processes += [engine.process for engine in self._there]
        awake = all(process.awake_ms <= self.clock.now_ms for process in processes)
        reached = all(engine.reaches(manager.name) for engine in self._there for manager in self.managers)
        return awake and reached and not any(client.waits_for for client in self.clients)

    @property
    def _there(self) -> list[SimEngine]:
        return [engine for engine in self.engines if not engine.gone]

    def _open(self) -> str:
        return "; ".join(client.waits_for for client in self.clients if client.waits_for)

    def _keep_attached(self, engine: SimEngine) -> None:
        if engine.process.alive and engine.process.awake_ms <= self.clock.now_ms and not engine.draining:
            for manager in self.managers:
                apart = self.isolated.get((engine.name, manager.name), 0) > self.clock.now_ms
                if manager.process.alive and not engine.attached(manager.name) and not apart:
                    self._attach(engine, manager)
        self.outside.after(self.dice.between(ATTACH_MS // 2, ATTACH_MS), self._keep_attached, engine)

    def _attach(self, engine: SimEngine, manager: SimManager) -> None:
        link = Link(self.dice, engine.process, manager.process)
        manager.reports.serve(link)
        engine.attach(manager.name, link)

    def _manager(self, number: int) -> SimManager:
        name = f"manager-{number}"
        dice = self.dice.apart(name)
        site = Site(self.clock, self.store, self.bus, self.states, self.record, self.audit)
        return SimManager(site, dice, name)

    def _engine(self, number: int, model: str = "") -> SimEngine:
        dice = self.dice.apart(f"engine {number}")
        drawn = MODELS[number] if number < len(MODELS) else dice.pick(MODELS)
        kv_tokens = dice.pick([AMPLE_TOKENS, AMPLE_TOKENS, 900, 400, 300])
        engine = Engine(
            f"e-{number}", 0, model or drawn, dice.between(1, 4), kv_tokens=kv_tokens, block_tokens=16
        )
        return SimEngine(self.clock, self.bus, dice, self.record, engine)
