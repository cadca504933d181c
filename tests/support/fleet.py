"""Fleets and calls for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from parrot_manager.core.criteria import Objective, ObjectiveKind
from parrot_manager.core.model import Engine, Ref, Timings, Usage
from parrot_manager.core.prefixes import Prefix
from parrot_manager.core.scheduling import (
    APP_CENTRIC,
    Fleet,
    Pending,
    Placement,
    QueuedCall,
    SchedulingPolicy,
)

NUMBERS = count(1)
FAR_MS = 10**9


def engine(name: str, capacity: int = 8, model: str = "m", kv_tokens: int = 0) -> Engine:
    """An engine that takes calls."""
    return Engine(name, 1, model, capacity, kv_tokens=kv_tokens, context_window_tokens=32_768)


def latency(start_ms: int = 1_000, group: str = "", remaining_ms: int = 1_000) -> Objective:
    """Run for latency."""
    return Objective(
        ObjectiveKind.LATENCY,
        group,
        latest_finish_ms=start_ms + 1_000,
        latest_start_ms=start_ms,
        remaining_ms=remaining_ms,
    )


def throughput(start_ms: int = FAR_MS, remaining_ms: int = 1_000) -> Objective:
    """Run for throughput."""
    return Objective(
        ObjectiveKind.THROUGHPUT,
        latest_finish_ms=start_ms + 1_000,
        latest_start_ms=start_ms,
        remaining_ms=remaining_ms,
    )


def prefix(name: str, tokens: int, *, pieces: int = 1, public: bool = False) -> Prefix:
    """A prefix whose values are known."""
    return Prefix(pieces, name, tokens, public, complete=True)


def call(
    session: str = "s",
    *,
    tenant: str = "t",
    objective: Objective | None = None,
    prompt: int = 100,
    output: int = 100,
    prefixes: Iterable[Prefix] = (),
    model: str = "m",
    created_ms: int = 0,
    ready_ms: int = 0,
    pending: tuple[Pending, ...] = (),
    name: str = "f",
) -> QueuedCall:
    """A ready call, each with a number of its own."""
    number = next(NUMBERS)
    return QueuedCall(
        created_ms,
        session,
        number,
        f"c-{number}",
        model,
        ready_ms,
        tenant,
        name,
        objective,
        prompt,
        output,
        tuple(prefixes),
        pending,
    )


@dataclass
class Site:
    """A fleet whose placements are carried out, and undone when their calls end."""

    fleet: Fleet
    placed: list[Placement] = field(default_factory=list)
    refs: dict[tuple[str, str], Ref] = field(default_factory=dict)

    @classmethod
    def of(cls, *engines: Engine, policy: SchedulingPolicy = APP_CENTRIC) -> Site:
        """A site of these engines."""
        site = cls(Fleet(policy))
        for one in engines:
            site.fleet.join(one)
        return site

    def ready(self, *calls: QueuedCall) -> None:
        """Queues calls."""
        for one in calls:
            self.fleet.ready(one)

    def place(self, now_ms: int = 0) -> list[Placement]:
        """Carries out what the fleet decides."""
        placements = self.fleet.place(now_ms)
        for placement in placements:
            one = placement.call
            ref = self.refs[one.key] = Ref(one.session_id, one.call_id, 1)
            self.fleet.dispatched(placement, ref, now_ms)
        self.placed += placements
        return placements

    def engine_of(self, one: QueuedCall) -> str:
        """Where a call went, the last time; empty: nowhere."""
        return next((p.engine_id for p in reversed(self.placed) if p.call.key == one.key), "")

    def end(self, one: QueuedCall, now_ms: int = 0, output: int | None = None) -> None:
        """A call is done: it made so many tokens."""
        ref = self.refs.pop(one.key)
        usage = Usage(one.prompt_tokens, 0, one.max_tokens if output is None else output)
        self.fleet.finished(ref, usage, Timings(), now_ms)
        self.fleet.freed(self.engine_of(one), ref)
        self.fleet.forget_call(*one.key)

    def counts(self) -> dict[str, int]:
        """How many calls run on each engine."""
        return {name: len(load.running) for name, load in self.fleet.engines.items()}
