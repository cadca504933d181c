"""Control streams between engines and managers: in order, and lost at both ends, at different times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parrot_manager.core import commands, events
from parrot_manager.core.model import Engine, Ref, SharedContext
from tests.simulation.dice import Dice
from tests.simulation.kernel import Process


@dataclass(frozen=True, slots=True)
class Registration:
    """An engine's first word: what it is, what it still runs, and which contexts it has.

    Attributes:
        instance: its process: the same one attaches anew without having lost anything.
    """

    engine: Engine
    attempts: tuple[Ref, ...]
    contexts: tuple[SharedContext, ...]
    instance: Process


@dataclass(frozen=True, slots=True)
class Epochs:
    """A manager's word on what an engine marks its writes to some shards with.

    Attributes:
        marks: by shard, the lease's epoch and the fence's: of two managers the later one is right.
    """

    marks: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """A manager's first word."""

    manager_id: str
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class Fenced:
    """An engine's writes to a shard were refused: it asks for what they are marked with now."""

    shard: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over: `event` is what became of it; none when it was cancelled."""

    ref: Ref
    event: events.AttemptDone | events.AttemptFailed | None


AGAIN = 0.03
"""How often an engine says once more, some time later, how an attempt ended."""

Up = Registration | Fenced | Ended | events.Event
Down = Registered | Epochs | commands.Command


class Link:
    """One stream. Each end hears of its end once, when its own side notices."""

    def __init__(self, dice: Dice, engine: Process, manager: Process) -> None:
        self._dice = dice
        self._engine = engine
        self._manager = manager
        self._arrived_ms = [0, 0]
        self.broken = False
        self.on_up: Callable[[Link, Up], None] = _ignore
        self.on_down: Callable[[Link, Down], None] = _ignore
        self.lost_up: Callable[[Link], None] = _pass
        self.lost_down: Callable[[Link], None] = _pass

    def up(self, message: Up) -> None:
        """Engine to manager."""
        if not self.broken:
            self._manager.after(self._delay(0), self._deliver_up, message)
            if isinstance(message, Ended) and self._dice.chance(AGAIN):
                self._manager.after(self._dice.between(5, 2_000), self._deliver_up, message)

    def down(self, message: Down) -> None:
        """Manager to engine."""
        if not self.broken:
            self._engine.after(self._delay(1), self._deliver_down, message)

    def cut(self, *, manager_notices_ms: int, engine_notices_ms: int) -> None:
        """Nothing gets through any more."""
        if self.broken:
            return
        self.broken = True
        self._manager.after(manager_notices_ms, self._lose_up)
        self._engine.after(engine_notices_ms, self._lose_down)

    def _deliver_up(self, message: Up) -> None:
        if not self.broken:
            self.on_up(self, message)

    def _deliver_down(self, message: Down) -> None:
        if not self.broken:
            self.on_down(self, message)

    def _lose_up(self) -> None:
        self.lost_up(self)

    def _lose_down(self) -> None:
        self.lost_down(self)

    def _delay(self, way: int) -> int:
        now_ms = self._engine.clock.now_ms
        self._arrived_ms[way] = max(self._arrived_ms[way], now_ms + self._dice.between(0, 4))
        return self._arrived_ms[way] - now_ms


def _ignore(link: Link, message: object) -> None:
    """Nobody is there yet."""


def _pass(link: Link) -> None:
    """Nobody is there yet."""
