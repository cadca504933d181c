"""What goes wrong, and when: drawn once a run, from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.dice import Dice

if TYPE_CHECKING:
    from tests.simulation.engine import SimEngine
    from tests.simulation.links import Link
    from tests.simulation.manager import SimManager
    from tests.simulation.world import World

SILENCE_MS = 3_000
"""An engine that says nothing for so long is given up."""
FAULTS_MS = 8_000
"""Faults begin before that; then everything is mended."""


@dataclass(slots=True)
class Weather:
    """How much of each kind goes wrong in a run."""

    faults: int
    loss: float

    @classmethod
    def draw(cls, dice: Dice) -> Weather:
        """Calm, usual, or a storm."""
        kind = dice.between(0, 9)
        if kind < 1:
            return cls(0, 0.0)
        if kind < 8:
            return cls(dice.between(1, 6), dice.pick([0.0, 0.01, 0.04]))
        return cls(dice.between(6, 14), dice.pick([0.02, 0.1]))


class Faults:
    """Makes things go wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice.apart("faults")
        self._over = False

    def plan(self, weather: Weather) -> None:
        """Draws what goes wrong in a run."""
        world = self._world
        world.bus.loss = world.net.loss = weather.loss
        world.store.disk.loss = weather.loss / 2
        kinds: list[Callable[[], None]] = [
            *[self._kill_engine] * 4,
            *[self._cut_link] * 3,
            *[self._isolate] * 3,
            *[self._freeze_engine] * 2,
            *[self._kill_manager] * 4,
            *[self._freeze_manager] * 3,
            *[self._take_over_without_an_engine] * 3,
            *[self._replace_engine] * 2,
            self._slow_engine,
            self._drain_engine,
            self._store_down,
            self._store_slow,
            self._bus_down,
            self._bus_down,
        ]
        for _ in range(weather.faults):
            world.outside.after(self._dice.between(300, FAULTS_MS), self._strike, self._dice.pick(kinds))

    def end(self) -> None:
        """Mends everything: what is dead begins anew."""
        world = self._world
        self._over = True
        world.bus.loss = world.net.loss = world.store.disk.loss = 0.0
        world.bus.down_until_ms = world.store.disk.down_until_ms = 0
        world.store.disk.slowness = 1
        world.isolated.clear()
        for engine in world.engines:
            engine.slowness = 1
            self._start_engine(engine)
        for manager in world.managers:
            self._start_manager(manager)

    def _strike(self, fault: Callable[[], None]) -> None:
        if not self._over:
            fault()

    def _kill_engine(self) -> None:
        engine = self._dice.pick(self._world.engines)
        if engine.process.alive:
            engine.kill(notice_ms=self._dice.pick([50, SILENCE_MS]))
            self._world.outside.after(self._dice.between(100, 8_000), self._start_engine, engine)

    def _replace_engine(self) -> None:
        """An engine dies with its machine, and a manager with it; one of another name comes in its place."""
        engine = self._dice.pick(self._world.engines)
        if not engine.gone:
            engine.gone = True
            if engine.process.alive:
                engine.kill(notice_ms=self._dice.pick([50, SILENCE_MS]))
            self._world.outside.after(self._dice.between(100, 4_000), self._world.replace, engine)
            self._kill_manager()

    def _start_engine(self, engine: SimEngine) -> None:
        if not engine.process.alive and not engine.gone:
            engine.start()

    def _freeze_engine(self) -> None:
        engine = self._dice.pick(self._world.engines)
        for_ms = self._dice.between(200, 7_000)
        engine.freeze(for_ms)
        if for_ms > SILENCE_MS:
            for link in engine.links.values():
                self._world.outside.after(SILENCE_MS, self._give_up, link)

    def _give_up(self, link: Link) -> None:
        link.cut(manager_notices_ms=0, engine_notices_ms=0)

    def _cut_link(self) -> None:
        engine = self._dice.pick(self._world.engines)
        for link in list(engine.links.values()):
            if self._dice.chance(0.6):
                link.cut(
                    manager_notices_ms=self._dice.between(0, SILENCE_MS),
                    engine_notices_ms=self._dice.between(0, SILENCE_MS),
                )

    def _isolate(self) -> None:
        """An engine and a manager don't reach each other for a while; both reach everybody else."""
        engine, manager = self._dice.pick(self._world.engines), self._dice.pick(self._world.managers)
        self._part(engine, manager, self._dice.between(1_000, 9_000))

    def _take_over_without_an_engine(self) -> None:
        """A manager dies, and whoever comes in its place does not hear of an engine that goes on."""
        engine = self._dice.pick(self._world.engines)
        for manager in self._world.managers:
            self._part(engine, manager, self._dice.between(4_000, 10_000))
        self._kill_manager()

    def _part(self, engine: SimEngine, manager: SimManager, for_ms: int) -> None:
        self._world.isolated[engine.name, manager.name] = self._world.clock.now_ms + for_ms
        link = engine.links.get(manager.name)
        if link is not None:
            link.cut(
                manager_notices_ms=self._dice.between(0, SILENCE_MS),
                engine_notices_ms=self._dice.between(0, SILENCE_MS),
            )

    def _slow_engine(self) -> None:
        self._dice.pick(self._world.engines).slowness = self._dice.between(2, 10)

    def _drain_engine(self) -> None:
        engine = self._dice.pick(self._world.engines)
        engine.drain()
        self._world.outside.after(self._dice.between(500, 3_000), self._stop_drained, engine)

    def _stop_drained(self, engine: SimEngine) -> None:
        if engine.process.alive and engine.draining:
            engine.kill(notice_ms=50)
            self._world.outside.after(self._dice.between(100, 2_000), self._start_engine, engine)

    def _kill_manager(self) -> None:
        manager = self._dice.pick(self._world.managers)
        if manager.process.alive:
            manager.kill()
            self._world.outside.after(self._dice.between(50, 8_000), self._start_manager, manager)

    def _start_manager(self, manager: SimManager) -> None:
        if not manager.process.alive:
            manager.start()

    def _freeze_manager(self) -> None:
        self._dice.pick(self._world.managers).freeze(self._dice.between(200, 9_000))

    def _store_down(self) -> None:
        self._world.store.disk.down_until_ms = self._world.clock.now_ms + self._dice.between(200, 6_000)

    def _store_slow(self) -> None:
        self._world.store.disk.slowness = self._dice.pick([5, 40, 200])
        self._world.outside.after(self._dice.between(500, 4_000), self._store_fast)

    def _store_fast(self) -> None:
        self._world.store.disk.slowness = 1

    def _bus_down(self) -> None:
        self._world.bus.down_until_ms = self._world.clock.now_ms + self._dice.between(200, 4_000)
