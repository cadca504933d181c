"""The calls whose missing inputs are all being made, and when one of them goes ahead."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from parrot_manager.core.scheduling.books import Books
from parrot_manager.core.scheduling.calls import Placement, QueuedCall
from parrot_manager.core.scheduling.cost import fits
from parrot_manager.core.scheduling.decisions import explain_stream
from parrot_manager.core.scheduling.engines import Booking, EngineLoad
from parrot_manager.core.scheduling.placement import Choice, Demand
from parrot_manager.core.scheduling.priority import beside_share, priority, step_ms
from parrot_manager.core.scheduling.streaming import Edge, worth

LOOKED_AT: Final = 16
"""Calls that are looked at in a step, in turns."""
ENGINES: Final = 2
"""Engines that are looked at beside the producers' own."""


class Edges:
    """See the module."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._calls: OrderedDict[tuple[str, str], QueuedCall] = OrderedDict()

    def add(self, call: QueuedCall) -> None:
        """A call waits for running attempts alone."""
        self._calls[call.key] = call

    def discard(self, key: tuple[str, str]) -> None:
        """A call is not to be sent ahead."""
        self._calls.pop(key, None)

    def calls(self) -> list[QueuedCall]:
        """All of them."""
        return list(self._calls.values())

    def place(self, now_ms: int) -> list[Placement]:
        """Those that are better sent now; not into places that calls as urgent could use at once."""
        placements: list[Placement] = []
        for call in list(islice(self._calls.values(), LOOKED_AT)):
            placement = self._place_one(call, now_ms)
            if placement is None:
                self._calls.move_to_end(call.key)
            else:
                del self._calls[call.key]
                placements.append(placement)
        return placements

    def _place_one(self, call: QueuedCall, now_ms: int) -> Placement | None:
        if self._books.queue.rivals(call):
            return None
        producers = self._producers(call)
        if not producers:
            return None
        edge = Edge.of(producers, now_ms)
        demand = self._books.chooser.demand(call, now_ms)
        best = self._best(demand, edge)
        if best is None:
            return None
        _, hidden_ms, choice = best
        shares = self._books.book(call, choice, now_ms, now_ms + edge.remaining_ms)
        made = [booking.output.q50 for _, booking in producers]
        names = tuple(dict.fromkeys(pending.producer.call_id for pending in call.pending))
        return Placement(
            call,
            choice.load.engine.id,
            explain_stream(choice.load.engine.id, hidden_ms, names),
            shares,
            priority(call, self._books.policy),
            demand.output.q50,
            tuple((one.variable_id, tokens) for one, tokens in zip(call.pending, made, strict=True)),
            step_ms(call, self._books.policy),
            beside_share(call, self._books.policy),
        )

    def _producers(self, call: QueuedCall) -> list[tuple[str, Booking]]:
        """Of each pending input, where it is made; none when one of them is not being made any more."""
        found: list[tuple[str, Booking]] = []
        for pending in call.pending:
            running = self._books.find(pending.producer)
            if running is None:
                return []
            load, booking = running
            found.append((load.engine.id, booking))
        return found

    def _best(self, demand: Demand, edge: Edge) -> tuple[float, float, Choice] | None:
        """Where most is gained, all costs considered; what crosses the bus is one of them."""
        names = dict.fromkeys(edge.engines)
        for _, engine_id in self._books.room.of(demand.call.model, patient=demand.patient)[0][:ENGINES]:
            names[engine_id] = None
        loads = filter(None, map(self._books.engines.get, names))
        found = [one for load in loads if (one := self._worth(load, demand, edge)) is not None]
        return max(found, key=lambda one: one[0], default=None)

    def _worth(self, load: EngineLoad, demand: Demand, edge: Edge) -> tuple[float, float, Choice] | None:
        """What is gained on an engine, in all and of it hidden; None: nothing, or it has no room."""
        call, room = demand.call, self._books.room
        if not room.admits(load, call.model, patient=demand.patient) or load.free <= len(load.ahead):
            return None
        away = sum(name != load.engine.id for name in edge.engines)
        cost = self._books.chooser.cost(load, demand, transfers=away)
        need = cost.new_tokens + edge.pending_tokens + demand.output.q50
        if load.engine.id in call.avoid or not fits(load, need):
            return None
        found = worth(load, edge, cost.new_tokens, demand.output)
        # The others wait for this prefill now or later; what they lose is what it costs more in pieces. Those
        # that are more patient sit it out in any case.
        own = edge.hurry.get(load.engine.id, 0.0)
        others = max(0.0, load.hurry - own - (0.0 if demand.patient else load.patience))
        gain = demand.weight * found.gain_ms - others * found.harm_ms
        if gain <= 0:
            return None
        return gain - cost.total, found.hidden_ms, Choice(demand, load, cost, "")
