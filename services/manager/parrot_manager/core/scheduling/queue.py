"""The ready calls of a kin in the order they go.

Three levels. Between tenants: those who were served least may go, within a burst (`fairness`). Among
their first calls: the class, then the earliest latest start, then the session nearest its end. And one
turn in so many is that of the call whose slack has been gone for longest, which bounds its wait whatever
else comes.

The keys do not depend on the time, as all slack shrinks alike; so nothing is sorted again while it waits.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from parrot_manager.core.scheduling.calls import Kin, QueuedCall
from parrot_manager.core.scheduling.hurry import is_hopeless, is_overdue

LANES_LOOKED_AT: Final = 32
"""The first calls of so many tenants are compared: those of the tenants that were served least."""

DEAD: Final = 64
"""So many entries of calls that were taken out may stay in a lane whatever its size."""

Key = tuple[bool, float, float, int, str, int]
Order = Callable[[QueuedCall, bool], tuple[bool, Key]]
"""Of a call, and whether its group has begun: whether it is patient, and its place among its like."""


@dataclass(slots=True, eq=False)
class Entry:
    """A call in the queue.

    Attributes:
        rank: its class and its key; no two calls' are equal.
        timed: its objective counts.
        late: it would be far too late by now.
        alive: it was not taken out.
    """

    call: QueuedCall
    rank: tuple[bool, Key]
    timed: bool = True
    late: bool = False
    alive: bool = True

    @property
    def order(self) -> tuple[bool, bool, Key]:
        """Among all that could go."""
        patient, key = self.rank
        return patient, self.late, key

    @property
    def start(self) -> Key:
        """Among those whose slack is gone: by the latest start alone, whether or not its group has begun."""
        return True, *self.rank[1][1:]


Heap = list[tuple[Key, int, Entry]]


@dataclass(slots=True)
class Lane:
    """One tenant's calls of one kin.

    Attributes:
        urgent: those that can still end in time, or about in time.
        late: those that would be far too late: they go when no urgent one does.
        turns: the same, in the order of their turns.
        patient: those that are in no hurry.
    """

    urgent: Heap = field(default_factory=list)
    late: Heap = field(default_factory=list)
    turns: Heap = field(default_factory=list)
    patient: Heap = field(default_factory=list)
    alive: int = 0

    def push(self, entry: Entry, number: int) -> None:
        """Takes a call in. `number`: another one each time, for a call that comes again as it was."""
        patient, key = entry.rank
        heapq.heappush(self.patient if patient else self.urgent, (key, number, entry))

    def head(self, now_ms: int) -> Entry | None:
        """The first of them all."""
        while (entry := first_of(self.urgent)) is not None:
            if not entry.timed or not is_hopeless(entry.call, now_ms):
                return entry
            item = heapq.heappop(self.urgent)
            heapq.heappush(self.late, item)
            heapq.heappush(self.turns, (entry.start, item[1], entry))
            entry.late = True
        return first_of(self.late) or first_of(self.patient)

    def turn(self, now_ms: int) -> Entry | None:
        """The first of those whose slack is gone."""
        patient = first_of(self.patient)
        if patient is None or not patient.timed or not is_overdue(patient.call, now_ms):
            patient = None
        return earlier(first_of(self.turns), patient)

    def take_out(self, entry: Entry) -> None:
        """Takes a call out: its entry goes when it comes to the front, or when too many are like it."""
        entry.alive = False
        self.alive -= 1
        most = 2 * self.alive + DEAD
        if len(self.urgent) + len(self.late) + len(self.patient) > most or len(self.turns) > most:
            for heap in (self.urgent, self.late, self.turns, self.patient):
                heap[:] = [item for item in heap if item[2].alive]
                heapq.heapify(heap)


def first_of(heap: Heap) -> Entry | None:
    """The first that was not taken out."""
    while heap:
        entry = heap[0][2]
        if entry.alive:
            return entry
        heapq.heappop(heap)
    return None


class KinQueue:
    """All tenants' calls of one kin. The tenants' clocks are told by whoever knows them."""

    def __init__(self, clock: Callable[[str], float]) -> None:
        self._clock = clock
        self._lanes: dict[str, Lane] = {}
        self._clocks: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._calls = 0
        self._pushed = 0

    def __len__(self) -> int:
        return self._calls

    @property
    def least(self) -> float:
        """The clock of the tenant that was served least, of those who wait here; there must be one."""
        return self._order[0][0]

    @property
    def lead(self) -> float:
        """How far the tenant that was served most is ahead of that one, of those who wait here."""
        return self._order[-1][0] - self._order[0][0]

    def push(self, entry: Entry) -> None:
        """Takes a call in."""
        tenant = entry.call.tenant
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = Lane()
            self._clocks[tenant] = self._clock(tenant)
            insort(self._order, (self._clocks[tenant], tenant))
        self._pushed += 1
        lane.push(entry, self._pushed)
        lane.alive += 1
        self._calls += 1

    def discard(self, entry: Entry) -> None:
        """Takes a call out."""
        tenant = entry.call.tenant
        lane = self._lanes[tenant]
        lane.take_out(entry)
        self._calls -= 1
        if not lane.alive:
            del self._lanes[tenant]
            self._leave(tenant)

    def moved(self, tenant: str) -> None:
        """A tenant's clock has moved."""
        if tenant in self._lanes:
            self._leave(tenant)
            self._clocks[tenant] = self._clock(tenant)
            insort(self._order, (self._clocks[tenant], tenant))

    def first(self, now_ms: int, limit: float, *, overdue_turn: bool) -> Entry | None:
        """The call that goes first, of a tenant whose clock does not exceed `limit`."""
        best: Entry | None = None
        late: Entry | None = None
        for clock, tenant in self._order[:LANES_LOOKED_AT]:
            if clock > limit:
                break
            lane = self._lanes[tenant]
            if overdue_turn:
                late = earlier(late, lane.turn(now_ms))
            head = lane.head(now_ms)
            if head is not None and (best is None or head.order < best.order):
                best = head
        return late or best

    def __iter__(self) -> Iterator[Entry]:
        for lane in self._lanes.values():
            for heap in (lane.urgent, lane.late, lane.patient):
                yield from (entry for _, _, entry in heap if entry.alive)

    def _leave(self, tenant: str) -> None:
        at = bisect_left(self._order, (self._clocks.pop(tenant), tenant))
        del self._order[at]


def earlier(one: Entry | None, other: Entry | None) -> Entry | None:
    """The one whose latest start is earlier."""
    if one is None or other is None:
        return one or other
    return one if one.start < other.start else other


class ReadyQueue:
    """The ready calls of all kins, and the task groups they belong to."""

    def __init__(self, order: Order, clock: Callable[[str], float], *, timed: bool) -> None:
        self._order = order
        self._clock = clock
        self._timed = timed
        self._queues: dict[Kin, KinQueue] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._groups: dict[tuple[str, str], dict[tuple[str, str], QueuedCall]] = {}
        self._begun: set[tuple[str, str]] = set()
        self._hurried: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: tuple[str, str]) -> Entry | None:
        """A call's place, if it has one."""
        return self._entries.get(key)

    def models(self) -> list[str]:
        """The models that are asked for."""
        return sorted({model for model, _ in self._queues})

    def kins(self) -> Iterator[tuple[Kin, KinQueue]]:
        """The calls of each kin."""
        yield from self._queues.items()

    def of(self, model: str) -> Iterator[QueuedCall]:
        """The calls that ask for a model."""
        for (asked, _), queue in self._queues.items():
            if asked == model:
                yield from (entry.call for entry in queue)

    def least(self, model: str) -> float | None:
        """The clock of the tenant that was served least, of those who ask for a model; None: nobody does."""
        return min(
            (queue.least for (asked, _), queue in self._queues.items() if asked == model), default=None
        )

    def rivals(self, call: QueuedCall) -> bool:
        """Whether calls wait for what a call asks for that are not more patient than it is."""
        patient, _ = self._order(call, False)
        return bool(self._hurried[call.model]) or (patient and self.least(call.model) is not None)

    def lead(self) -> float:
        """How far ahead of another a tenant is, of two who wait for the same; 0: no two do."""
        return max((queue.lead for queue in self._queues.values()), default=0.0)

    def add(self, call: QueuedCall) -> None:
        """Takes a call in, or takes it in again as it is now."""
        group = call.group
        begun = group in self._begun
        self.discard(call.key)
        if group is not None:
            self._groups.setdefault(group, {})[call.key] = call
            if begun:
                self._begun.add(group)
        entry = self._entries[call.key] = Entry(call, self._order(call, begun), self._timed)
        if call.kin not in self._queues:
            self._queues[call.kin] = KinQueue(self._clock)
        self._queues[call.kin].push(entry)
        self._hurried[call.model] += not entry.rank[0]

    def discard(self, key: tuple[str, str]) -> None:
        """Takes a call out, if it is there."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self.set_aside(key)
        group = entry.call.group
        if group is not None:
            members = self._groups[group]
            del members[key]
            if not members:
                del self._groups[group]
                self._begun.discard(group)

    def set_aside(self, key: tuple[str, str]) -> None:
        """Takes a call out that is added again at once: its group knows nothing of it."""
        entry = self._entries.pop(key)
        queue = self._queues[entry.call.kin]
        queue.discard(entry)
        self._hurried[entry.call.model] -= not entry.rank[0]
        if not self._hurried[entry.call.model]:
            del self._hurried[entry.call.model]
        if not len(queue):
            del self._queues[entry.call.kin]

    def members(self, group: tuple[str, str]) -> list[QueuedCall]:
        """The ready calls of a task group."""
        return [call for key, call in self._groups.get(group, {}).items() if key in self._entries]

    def begin(self, group: tuple[str, str]) -> None:
        """Part of a group was placed: the rest goes before all of its tenant's that are not more urgent."""
        if group in self._groups and group not in self._begun:
            self._begun.add(group)
            for call in self.members(group):
                self.set_aside(call.key)
                self.add(call)

    def moved(self, tenant: str) -> None:
        """A tenant's clock has moved."""
        for queue in self._queues.values():
            queue.moved(tenant)
