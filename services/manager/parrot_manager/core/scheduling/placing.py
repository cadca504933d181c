"""The scheduler's loop: in the queue's order, each call to its engine, groups as a whole."""

from __future__ import annotations

from collections import Counter
from typing import Final

from parrot_manager.core.scheduling.books import Books
from parrot_manager.core.scheduling.calls import Kin, Placement, QueuedCall, models_taken
from parrot_manager.core.scheduling.edges import Edges
from parrot_manager.core.scheduling.hurry import is_overdue
from parrot_manager.core.scheduling.placement import Choice
from parrot_manager.core.scheduling.policies import SchedulingPolicy
from parrot_manager.core.scheduling.priority import beside_share, priority, step_ms
from parrot_manager.core.scheduling.queue import Entry

HELD_MS: Final = 5_000
"""A call without room so long after its slack is gone has an engine's room kept for it until it fits."""


class Placing:
    """Looks only when something has changed that could give a call its place."""

    def __init__(self, policy: SchedulingPolicy, books: Books) -> None:
        self._policy = policy
        self._books = books
        self._queue = books.queue
        self._edges = Edges(books)
        self._changed = False
        self._placed: Counter[str] = Counter()
        """By the model of the engine, and in all as `ANY_MODEL`: whose calls go to all engines."""
        self._tried: dict[tuple[str, str], tuple[int, bool]] = {}
        """Of calls that found no room: the version it was looked for at, and whether they were overdue."""

    def add(self, call: QueuedCall) -> None:
        """A call may be placed, or may be placed as it is now."""
        self.discard(call.key)
        if call.pending:
            self._edges.add(call)
        else:
            self._queue.add(call)
        self._changed = True

    def discard(self, key: tuple[str, str]) -> None:
        """A call is not to be placed."""
        self._edges.discard(key)
        self._queue.discard(key)
        self._tried.pop(key, None)
        self._let_go(key)

    def ahead(self) -> list[QueuedCall]:
        """Calls that may be sent before their inputs."""
        return self._edges.calls()

    def look_again(self) -> None:
        """An engine takes no more calls: what avoided others for it may go to them now."""
        self._tried.clear()
        self._changed = True

    def wake(self) -> None:
        """There may be room."""
        self._changed = True

    def place(self, now_ms: int) -> list[Placement]:
        """As much as has room."""
        if not self._changed:
            return []
        self._changed = False
        placements: list[Placement] = []
        for call in list(self._books.chooser.held.values()):
            self._place_held(call.key, now_ms, placements)
        skipped: list[Entry] = []
        skips: Counter[Kin] = Counter()
        groups: set[tuple[str, str]] = set()
        while (entry := self._next(now_ms, skips)) is not None:
            before = len(placements)
            self._place_with_group(entry.call, now_ms, placements, groups)
            if entry.alive:
                if len(placements) == before:
                    self._hold(entry.call, now_ms)
                skipped.append(entry)
                skips[entry.call.kin] += 1
                self._queue.set_aside(entry.call.key)
        for entry in skipped:
            self._queue.add(entry.call)
        if self._policy.streaming_edges:
            placements += self._edges.place(now_ms)
        return placements

    def _next(self, now_ms: int, skips: Counter[Kin]) -> Entry | None:
        """The call that goes first, of those for whose kin there is room anywhere.

        A kin of which so many were tried in vain is out of this step, with the clocks of those who wait
        for its engines: others have engines of their own.
        """
        queues = {
            kin: queue
            for kin, queue in self._queue.kins()
            if skips[kin] <= self._policy.lookahead and self._books.chooser.has_room(kin)
        }
        if not queues:
            return None
        least = min(queue.least for queue in queues.values())
        self._books.fairness.advance(least)
        limit = least + self._policy.burst_tokens
        turns: list[Entry] = []
        others: list[Entry] = []
        for (model, _), queue in queues.items():
            # Counted by model: engines of several models come free in a rhythm, and one would have all turns.
            turn = self._placed[model] % self._policy.overdue_share == 0
            head = queue.first(now_ms, limit, overdue_turn=turn)
            if head is not None:
                (turns if turn else others).append(head)
        if turns:
            return min(turns, key=lambda head: head.start)
        return min(others, key=lambda head: head.order, default=None)

    def _place_with_group(
        self, call: QueuedCall, now_ms: int, placements: list[Placement], tried: set[tuple[str, str]]
    ) -> None:
        """A group's ready members go together, the longest first: that ends them soonest.

        It is looked through once a step: what is left of it then goes one by one.
        """
        group = call.group if self._policy.grouping else None
        if group is None or group in tried:
            self._place_one(call, now_ms, placements)
            return
        tried.add(group)
        estimates = self._books.estimates
        members = self._queue.members(group)
        members.sort(key=lambda m: (-estimates.output(m).q50, -m.prompt_tokens, m.order))
        # The one whose turn it is has the tenant's right to go; the others go as long as that lasts.
        failed = 0
        for place, member in enumerate(members):
            if failed > self._policy.lookahead or (place and not self._may_go(member)):
                break
            if self._books.chooser.has_room(member.kin):
                failed += not self._place_one(member, now_ms, placements)
        if len(members) > len(self._queue.members(group)):
            self._queue.begin(group)

    def _may_go(self, call: QueuedCall) -> bool:
        least = self._queue.least(call.model)
        clock = self._books.fairness.clock(call.tenant)
        return least is None or clock <= least + self._policy.burst_tokens

    def _place_one(self, call: QueuedCall, now_ms: int, placements: list[Placement]) -> bool:
        version, was_overdue = self._tried.get(call.key, (-1, False))
        overdue = is_overdue(call, now_ms)
        since = version if overdue == was_overdue else -1
        choice = self._books.chooser.choose(call, now_ms, since)
        if choice is None:
            room = self._books.room
            seen = room.changed_since(since)[1] if since >= 0 else room.version
            self._tried[call.key] = seen, overdue
            self._changed |= seen < room.version
            return False
        self._tried.pop(call.key, None)
        self._let_go(call.key)
        self._queue.discard(call.key)
        for model in models_taken(choice.load.engine.model):
            self._placed[model] += 1
        placements.append(self._booked(call, choice, now_ms))
        return True

    def _booked(self, call: QueuedCall, choice: Choice, now_ms: int) -> Placement:
        shares = self._books.book(call, choice, now_ms)
        return Placement(
            call,
            choice.load.engine.id,
            choice.reason,
            shares,
            priority(call, self._policy),
            choice.demand.output.q50,
            step_ms=step_ms(call, self._policy),
            beside_share=beside_share(call, self._policy),
        )

    def _place_held(self, key: tuple[str, str], now_ms: int, placements: list[Placement]) -> None:
        """A call that room is kept for takes it as soon as it is enough, whoever would be next."""
        entry = self._queue.get(key)
        if entry is None:
            self._let_go(key)
        else:
            self._place_one(entry.call, now_ms, placements)

    def _hold(self, call: QueuedCall, now_ms: int) -> None:
        """Keeps an engine's room for a call that has waited too long; for one of each model at a time."""
        held = self._books.chooser.held
        objective = call.objective if self._policy.objectives else None
        if objective is None or objective.latest_start_ms + HELD_MS > now_ms:
            return
        if any(holder.model == call.model for holder in held.values()):
            return
        engine_id = self._books.chooser.hold(call)
        if engine_id is not None:
            held[engine_id] = call

    def _let_go(self, key: tuple[str, str]) -> None:
        held = self._books.chooser.held
        for engine_id in [name for name, holder in held.items() if holder.key == key]:
            del held[engine_id]
            # Those that were tried meanwhile did not look at it.
            self._books.room.update(self._books.engines[engine_id])
            self._changed = True
