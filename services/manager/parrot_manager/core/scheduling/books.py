"""What is booked on engines: attempts, from their placement to the slot they free, and what they teach."""

from __future__ import annotations

from parrot_manager.core.commands import Share
from parrot_manager.core.estimates import Estimates
from parrot_manager.core.model import Ref, Timings, Usage
from parrot_manager.core.scheduling.calls import Placement, QueuedCall
from parrot_manager.core.scheduling.contexts import Contexts
from parrot_manager.core.scheduling.engines import Booking, EngineLoad
from parrot_manager.core.scheduling.fairness import Fairness
from parrot_manager.core.scheduling.placement import Choice, Chooser
from parrot_manager.core.scheduling.policies import SchedulingPolicy
from parrot_manager.core.scheduling.queue import ReadyQueue
from parrot_manager.core.scheduling.rank import Rank
from parrot_manager.core.scheduling.room import Room


class Books:
    """The only one that changes engines because of attempts."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.engines: dict[str, EngineLoad] = {}
        self.estimates = Estimates()
        self.contexts = Contexts(policy.share_tokens)
        self.room = Room(policy)
        self.fairness = Fairness()
        self.queue = ReadyQueue(Rank(policy), self.fairness.clock, timed=policy.objectives)
        self.chooser = Chooser(policy, self.estimates, self.contexts, self.room, self.engines)
        self._attempts: dict[Ref, EngineLoad] = {}
        self._turns = 0

    def find(self, ref: Ref) -> tuple[EngineLoad, Booking] | None:
        """Where an attempt runs, and as what."""
        load = self._attempts.get(ref)
        return (load, load.running[ref]) if load is not None else None

    def provisional(self, call: QueuedCall) -> Ref:
        """What a placement is booked as until its attempt has a number."""
        return Ref(call.session_id, call.call_id, 0)

    def book(
        self, call: QueuedCall, choice: Choice, now_ms: int, begins_ms: float = 0.0
    ) -> tuple[Share, ...]:
        """Books a call on the chosen engine; returns the prefixes to be shared there."""
        load, cost, demand = choice.load, choice.cost, choice.demand
        output = demand.output
        self.contexts.forget(call.key)
        shares = self.contexts.shares(load, call) if self.policy.prefix_affinity else ()
        self.contexts.use(load, call, shares)
        held = tuple(share.prefix_hash for share in shares)
        prefill_ms = cost.new_tokens / load.pace.prefill_per_ms
        begins_ms = max(now_ms, load.busy_until_ms, begins_ms)
        charged = cost.new_tokens + self.policy.decode_weight * output.q50
        booking = Booking(
            call,
            output,
            self._private_tokens(call, held) + output.q50,
            demand.weight,
            demand.patient,
            held,
            charged,
            now_ms,
            begins_ms,
            begins_ms + cost.service_ms,
        )
        load.busy_until_ms = max(now_ms, load.busy_until_ms) + prefill_ms
        self._turns += 1
        load.turn = self._turns
        self._take(load, self.provisional(call), booking)
        self._charge(call.tenant, charged)
        return shares

    def adopt(self, load: EngineLoad, ref: Ref, call: QueuedCall) -> None:
        """Books what runs already, in the contexts it runs in."""
        known = load.drop(ref)
        demand = self.chooser.demand(call, call.ready_ms)
        held = self.contexts.held(load, call) if self.policy.prefix_affinity else ()
        private = self._private_tokens(call, held) + demand.output.q50
        placed = known.placed_ms if known is not None else call.ready_ms
        booking = Booking(call, demand.output, private, demand.weight, demand.patient, held, placed_ms=placed)
        self._take(load, ref, booking)

    def name(self, placement: Placement, ref: Ref) -> None:
        """A booked placement is this attempt."""
        before = self.provisional(placement.call)
        load = self._attempts.pop(before)
        load.running[ref] = load.running.pop(before)
        self._attempts[ref] = load
        if before in load.ahead:
            load.ahead.remove(before)
            load.ahead.add(ref)

    def arrived(self, ref: Ref) -> None:
        """An attempt that was sent ahead has all its inputs: it needs its place now."""
        load = self._attempts.get(ref)
        if load is not None and ref in load.ahead:
            load.ahead.remove(ref)
            self.room.update(load)

    def started(self, ref: Ref, now_ms: int) -> None:
        """An attempt is taken up: its end is predicted from here."""
        found = self.find(ref)
        if found is not None:
            _, booking = found
            late = max(0.0, now_ms - booking.begins_ms)
            booking.begins_ms += late
            booking.ends_ms += late

    def learn(self, ref: Ref, usage: Usage, timings: Timings) -> None:
        """An attempt is done."""
        found = self.find(ref)
        if found is None or found[1].call is None:
            return
        load, booking = found
        call = found[1].call
        self.contexts.filled(load, booking.held)
        self.estimates.learn_output(call, usage.output_tokens)
        step_weight = (booking.step_weight + load.step_weight) / 2
        cut = booking.patient and load.urgent > 0
        self.estimates.learn_call(load.engine, step_weight, usage, timings, cut=cut)
        load.pace = self.estimates.pace(load.engine)
        computed = usage.prompt_tokens - usage.cached_tokens
        self._charge(
            call.tenant, computed + self.policy.decode_weight * usage.output_tokens - booking.charged
        )
        booking.charged = 0.0

    def free(self, load: EngineLoad, ref: Ref) -> bool:
        """An attempt is no longer there; False: it was not."""
        booking = load.drop(ref)
        self._attempts.pop(ref, None)
        if booking is None:
            return False
        self.contexts.unused(load, booking.held)
        self.room.update(load)
        return True

    def forget(self, ref: Ref) -> None:
        """An attempt's engine is gone."""
        self._attempts.pop(ref, None)

    def _take(self, load: EngineLoad, ref: Ref, booking: Booking) -> None:
        load.take(ref, booking)
        if booking.call is not None and booking.call.pending:
            load.ahead.add(ref)
        booking.step_weight = load.step_weight
        self._attempts[ref] = load
        self.room.update(load)

    def _private_tokens(self, call: QueuedCall, held: tuple[str, ...]) -> int:
        """Of a call's prompt, outside the contexts it holds, shortest first."""
        shared = next((prefix.tokens for prefix in call.prefixes if held and prefix.hash == held[-1]), 0)
        return max(0, call.prompt_tokens - shared)

    def _charge(self, tenant: str, tokens: float) -> None:
        self.fairness.charge(tenant, tokens)
        self.queue.moved(tenant)
