"""Algorithm 1 of the paper, with an explicit cost: the engine for a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parrot_manager.core.estimates import Estimates, Lengths
from parrot_manager.core.scheduling import hurry
from parrot_manager.core.scheduling.calls import Kin, QueuedCall
from parrot_manager.core.scheduling.contexts import Contexts
from parrot_manager.core.scheduling.cost import Cost, fits, reckon, within_latency
from parrot_manager.core.scheduling.decisions import explain, explain_load, explain_prefix, explain_turn
from parrot_manager.core.scheduling.engines import EngineLoad
from parrot_manager.core.scheduling.policies import SchedulingPolicy
from parrot_manager.core.scheduling.room import LOOKED_AT, Room

HOLDERS: Final = 4
"""Engines that are looked at because they hold a prefix, and as many because they suffer least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is placed: a call, as it is now.

    Attributes:
        weight: what a ms of it weighs.
        patient: it keeps away from calls that are not.
    """

    call: QueuedCall
    output: Lengths
    now_ms: int
    weight: float = 1.0
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine for a call."""

    demand: Demand
    load: EngineLoad
    cost: Cost
    reason: str


Found = dict[str, tuple[EngineLoad, Cost]]


class Chooser:
    """Chooses; changes nothing."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        estimates: Estimates,
        contexts: Contexts,
        room: Room,
        engines: Mapping[str, EngineLoad],
    ) -> None:
        self._policy = policy
        self._estimates = estimates
        self._contexts = contexts
        self._room = room
        self._engines = engines
        self.held: dict[str, QueuedCall] = {}
        """Engines whose room is kept for a call that has waited too long for it."""

    def has_room(self, kin: Kin) -> bool:
        """Whether an engine that calls of a kin may go to has room for one."""
        model, avoid = kin
        if not avoid or not self._room.has(model):
            return self._room.has(model)
        (order,) = self._room.of(model, patient=False)[:1]
        return any(name not in avoid for _, name in order) or not self._others_serve(model, avoid)

    def hold(self, call: QueuedCall) -> str | None:
        """The engine whose room is to be kept for a call: the one that needs to lose least for it."""
        able = [
            (load.private_tokens + load.used_tokens - load.kv_tokens, name)
            for name, load in self._engines.items()
            if load.serves(call.model) and name not in self.held and not self._avoids(call, load)
        ]
        return min(able)[1] if able else None

    def demand(self, call: QueuedCall, now_ms: int) -> Demand:
        """What a call asks for, as the policy sees it."""
        output = self._estimates.output(call)
        if not self._policy.objectives:
            return Demand(call, output, now_ms)
        return Demand(call, output, now_ms, hurry.weight(call, now_ms), hurry.is_patient(call, now_ms))

    def choose(self, call: QueuedCall, now_ms: int, since: int = -1) -> Choice | None:
        """The engine where a call costs least; None: none has room for it.

        `since`: the version of `Room` when none had; only what changed after it is looked at.
        """
        demand = self.demand(call, now_ms)
        if not self._policy.costs:
            return self._simple(demand)
        found = self._changed(demand, since) if since >= 0 else self._candidates(demand)
        if not found:
            return None
        (total, name), *rest = sorted((cost.total, name) for name, (_, cost) in found.items())
        load, cost = found[name]
        other = (rest[0][1], rest[0][0] - total) if rest else None
        return Choice(demand, load, cost, explain(name, call.prompt_tokens, cost, other))

    def cost(self, load: EngineLoad, demand: Demand, elsewhere_tokens: int = 0, transfers: int = 0) -> Cost:
        """What a call costs on an engine."""
        call = demand.call
        held_tokens = cached_tokens = 0
        if self._policy.prefix_affinity:
            held_tokens = self._contexts.held_tokens(load, call)
            cached_tokens = max(held_tokens, self._contexts.passed_tokens(load, call))
        return reckon(
            load,
            demand.output,
            demand.now_ms,
            prompt_tokens=call.prompt_tokens,
            cached_tokens=cached_tokens,
            held_tokens=held_tokens,
            own_weight=demand.weight,
            elsewhere_tokens=elsewhere_tokens,
            transfers=transfers,
        )

    def _changed(self, demand: Demand, since: int) -> Found:
        found: Found = {}
        for engine_id in self._room.changed_since(since)[0]:
            self._consider(found, self._engines[engine_id], demand)
        return found

    def _candidates(self, demand: Demand) -> Found:
        """Those that hold the longest prefixes, those that are fastest, and those with the least to lose."""
        found: Found = {}
        model, patient = demand.call.model, demand.patient
        if self._policy.prefix_affinity:
            for load in self._contexts.engines(demand.call, HOLDERS):
                self._consider(found, load, demand)
        for order in self._room.of(model, patient=patient):
            enough = len(found) + HOLDERS
            # A patient call may have to look far for an engine that has not enough to do with others.
            for _, engine_id in order[:LOOKED_AT]:
                if engine_id not in found:
                    self._consider(found, self._engines[engine_id], demand)
                    if len(found) == enough:
                        break
        return found

    def _consider(self, found: Found, load: EngineLoad, demand: Demand) -> None:
        if not self._room.admits(load, demand.call.model, patient=demand.patient):
            return
        if self._avoids(demand.call, load):
            return
        there = max((cost.cached_tokens for _, cost in found.values()), default=0)
        cost = self.cost(load, demand, there)
        need = cost.need_tokens
        if fits(load, need) and (not demand.patient or within_latency(load, need, self._policy)):
            found[load.engine.id] = (load, cost)

    def _avoids(self, call: QueuedCall, load: EngineLoad) -> bool:
        """Whether a call failed on an engine and another serves its model, or the room there is another's."""
        if self.held.get(load.engine.id, call).key != call.key:
            return True
        if load.engine.id not in call.avoid:
            return False
        return self._others_serve(call.model, call.avoid)

    def _others_serve(self, model: str, avoid: frozenset[str]) -> bool:
        return any(other.serves(model) for name, other in self._engines.items() if name not in avoid)

    def _simple(self, demand: Demand) -> Choice | None:
        """For policies that look at one thing only: the longest prefix, or the first with room."""
        call = demand.call
        holders = self._contexts.engines(call, HOLDERS) if self._policy.prefix_affinity else []
        for load in holders:
            cost = self.cost(load, demand)
            if self._takes(load, demand, cost):
                reason = explain_prefix(load.engine.id, call.prompt_tokens, cost.cached_tokens)
                return Choice(demand, load, cost, reason)
        for _, engine_id in self._room.of(call.model, patient=False)[0][:LOOKED_AT]:
            load = self._engines[engine_id]
            cost = self.cost(load, demand)
            if self._takes(load, demand, cost):
                return Choice(demand, load, cost, self._explain_simple(load))
        return None

    def _takes(self, load: EngineLoad, demand: Demand, cost: Cost) -> bool:
        call = demand.call
        if not self._room.admits(load, call.model, patient=False) or self._avoids(call, load):
            return False
        return fits(load, cost.need_tokens)

    def _explain_simple(self, load: EngineLoad) -> str:
        if not self._policy.load_aware:
            return explain_turn(load.engine.id)
        return explain_load(load.engine.id, len(load.running) + load.foreign, load.engine.capacity)
