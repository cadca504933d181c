"""A session as nodes that tell one another when to go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from parrot_runtime.critical_path.stages import Stage


class Sign(StrEnum):
    """What a node can tell."""

    CREATED = "created"
    OPENED = "opened"
    DISPATCHED = "dispatched"
    PUBLISHED = "published"
    READY = "ready"
    OVER = "over"


Signal = tuple[Sign, str]
"""A sign and what it is of: a variable's id for `PUBLISHED` and `READY`, else a node's."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A stretch of a node's time.

    Attributes:
        stage: what it is spent on, where no signal explains it.
        waits: signals that end it.
        hop: what lies between the last of those and its end; None: the stage again.
    """

    stage: Stage
    start_ms: float
    end_ms: float
    waits: tuple[Signal, ...] = ()
    hop: Stage | None = None

    @property
    def lasted_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


@dataclass(slots=True)
class Node:
    """A call, a block, a value that a client gave, or the session's own begin and end.

    Its tiles follow one another without a gap.

    Attributes:
        cause: the signal it began after, in `cause_stage`; None: it is the first.
        ran: it did something, rather than only end with others.
        emits: when it gave which signal.
        behind: and behind how many of its tiles, where it was not within one.
    """

    id: str
    start_ms: float
    cause: Signal | None = None
    cause_stage: Stage = Stage.CLIENT
    ran: bool = False
    tiles: list[Tile] = field(default_factory=list)
    emits: dict[Signal, float] = field(default_factory=dict)
    behind: dict[Signal, int] = field(default_factory=dict)

    @property
    def end_ms(self) -> float:
        """When its last tile ends."""
        return self.tiles[-1].end_ms if self.tiles else self.start_ms

    def add(
        self, stage: Stage, until_ms: float, waits: tuple[Signal, ...] = (), hop: Stage | None = None
    ) -> None:
        """Goes on to a time; one that lies before what is there already counts as that."""
        start_ms = self.end_ms
        if until_ms > start_ms or waits:
            self.tiles.append(Tile(stage, start_ms, max(start_ms, until_ms), waits, hop))

    def emit(self, sign: Sign, of: str, at_ms: float | None = None) -> None:
        """Gives a signal, at the end of what is there or at a time within."""
        end_ms = self.end_ms
        given_ms = end_ms if at_ms is None else min(max(at_ms, self.start_ms), end_ms)
        self.emits[sign, of] = given_ms
        if given_ms == end_ms:
            self.behind[sign, of] = len(self.tiles)


@dataclass(slots=True)
class Network:
    """All nodes, and who gives which signal. `end_id`: the node whose end is the session's."""

    nodes: dict[str, Node]
    end_id: str
    emitters: dict[Signal, str]

    def time_of(self, signal: Signal) -> float | None:
        """When a signal was given; None: never."""
        emitter = self.emitters.get(signal)
        return None if emitter is None else self.nodes[emitter].emits[signal]

    def binding(self, tile: Tile) -> tuple[Signal, float] | None:
        """The last of the signals a tile waited for, if that came after its begin, and when.

        Of two machines the clocks may differ: the time can lie behind the tile's end by as much.
        Of several at one time it is one that ran: what failed takes along those that wait for it.
        """
        given = [
            (at_ms, self.nodes[self.emitters[signal]].ran, signal)
            for signal in tile.waits
            if (at_ms := self.time_of(signal)) is not None
        ]
        if not given:
            return None
        at_ms, _, signal = max(given)
        return (signal, at_ms) if at_ms > tile.start_ms else None
