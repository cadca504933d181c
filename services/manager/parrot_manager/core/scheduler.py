"""Which ready call goes to which engine.

The order is: the oldest session first, and within it the topological order. The place is the
least loaded engine that serves the model and has room.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from parrot_manager.core.model import Engine, EngineState, Ref

ANY_MODEL = ""


@dataclass(frozen=True, slots=True, order=True)
class QueuedCall:
    """A call whose inputs are all there; sorts in dispatch order."""

    session_created_ms: int
    session_id: str
    order: int
    call_id: str
    model: str = field(compare=False)
    ready_ms: int = field(compare=False)


@dataclass(slots=True)
class EngineLoad:
    """An engine and the attempts that occupy it."""

    engine: Engine
    running: dict[Ref, None] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Calls it could take now."""
        if self.engine.state is not EngineState.READY:
            return 0
        return max(0, self.engine.capacity - len(self.running))

    def serves(self, model: str) -> bool:
        """Whether a call of this model may go to it, now or when it has room."""
        return self.engine.state is EngineState.READY and model in {ANY_MODEL, self.engine.model}


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision: this call to that engine."""

    call: QueuedCall
    engine_id: str


class ReadyQueue:
    """The ready calls, in dispatch order, by model."""

    def __init__(self) -> None:
        self._queues: dict[str, list[QueuedCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, call: QueuedCall) -> None:
        """Queues a call."""
        insort(self._queues.setdefault(call.model, []), call)

    def discard(self, call: QueuedCall) -> None:
        """Takes a call out, if it is there."""
        queue = self._queues.get(call.model, [])
        place = bisect_left(queue, call)
        if place < len(queue) and queue[place] == call:
            del queue[place]
            if not queue:
                del self._queues[call.model]

    def models(self) -> list[str]:
        """The models that are asked for."""
        return list(self._queues)

    def of(self, model: str) -> Sequence[QueuedCall]:
        """The calls that ask for a model, in order."""
        return self._queues.get(model, ())


def schedule(ready: ReadyQueue, engines: Iterable[EngineLoad]) -> list[Placement]:
    """As many placements as the engines have room for, in dispatch order."""
    if not len(ready):
        return []
    room = _Room(engines)
    waiting = {model: iter(ready.of(model)) for model in ready.models()}
    heads: list[QueuedCall] = []
    for queue in waiting.values():
        _push_next(heads, queue)
    placements: list[Placement] = []
    while heads and room:
        call = heapq.heappop(heads)
        engine_id = room.take(call.model)
        # A model without room has none for the rest of its queue either.
        if engine_id is not None:
            placements.append(Placement(call, engine_id))
            _push_next(heads, waiting[call.model])
    return placements


def _push_next(heads: list[QueuedCall], queue: Iterator[QueuedCall]) -> None:
    call = next(queue, None)
    if call is not None:
        heapq.heappush(heads, call)


@dataclass(slots=True)
class _Seat:
    """How full an engine would be, and how often that has changed."""

    load: EngineLoad
    free: int

    @property
    def fullness(self) -> float:
        return 1 - self.free / self.load.engine.capacity


class _Room:
    """The engines with room, least loaded first, by model."""

    def __init__(self, engines: Iterable[EngineLoad]) -> None:
        self._seats: dict[str, _Seat] = {}
        self._heaps: dict[str, list[tuple[float, str]]] = {}
        for load in engines:
            if load.free:
                self._seats[load.engine.id] = _Seat(load, load.free)
                self._offer(load.engine.id)

    def __bool__(self) -> bool:
        return bool(self._seats)

    def take(self, model: str) -> str | None:
        """The least loaded engine for a model, with one place less from here on."""
        heap = self._heaps.get(model, [])
        while heap:
            fullness, engine_id = heapq.heappop(heap)
            seat = self._seats.get(engine_id)
            # An engine stands in its model's heap and in that of any model: the other entry is stale.
            if seat is None or seat.fullness != fullness:
                continue
            seat.free -= 1
            if seat.free:
                self._offer(engine_id)
            else:
                del self._seats[engine_id]
            return engine_id
        return None

    def _offer(self, engine_id: str) -> None:
        seat = self._seats[engine_id]
        for model in (seat.load.engine.model, ANY_MODEL):
            heapq.heappush(self._heaps.setdefault(model, []), (seat.fullness, engine_id))
