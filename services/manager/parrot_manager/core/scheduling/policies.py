"""The named policies, and what each of them is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from parrot_manager.core.objectives import DEFAULT_LEEWAY, Leeway


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be unfinished at once, in calls; 0: there is no limit."""

    tenant_calls: int = 200_000
    total_calls: int = 1_000_000


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """How calls are ordered and placed.

    Attributes:
        grouping: a task group goes together, over as many engines as end it soonest.
        prefix_affinity: calls go where their prefix is or will be, and contexts are kept for them.
        objectives: order and place look at what a call is run for; otherwise all calls are alike.
        streaming_edges: a consumer may go to an engine while its producer decodes.
        app_order: calls go in the order of their applications; otherwise as they became ready.
        costs: engines are compared by what a call costs there, not by how many they run.
        load_aware: the engine that suffers least; otherwise engines take turns.
        leeway: how long applications may take.
        burst_tokens: what a tenant may be served ahead of the others before they go first; a token that
            is decoded counts as `decode_weight` of those that are prefilled.
        overdue_share: one placement in so many goes to a throughput call whose slack is gone, however
            many others wait: this is what bounds its wait.
        latency_step_ms: where others run, throughput calls may not make steps longer than this, or than
            twice an idle step, as long as they have slack.
        step_ms: while the output of a call that is no throughput call is written, a step of its engine is
            to take no longer than this, whatever is prefilled beside it: few read more than four tokens a
            second.
        beside_share: by what share throughput calls' prompts may lengthen those steps on average. An output
            that is read while it is written is not hurried so: nobody reads faster for it.
        reserved_share: of an engine's places, those that throughput calls leave free.
        share_tokens: a prefix of fewer tokens is not worth a shared context of its own.
        lookahead: calls that are tried for a place when the first in order has none.
    """

    name: str = "app_centric"
    grouping: bool = True
    prefix_affinity: bool = True
    objectives: bool = True
    streaming_edges: bool = True
    app_order: bool = True
    load_aware: bool = True
    costs: bool = True
    leeway: Leeway = DEFAULT_LEEWAY
    burst_tokens: int = 20_000
    decode_weight: float = 4.0
    overdue_share: int = 4
    latency_step_ms: float = 40.0
    step_ms: int = 240
    beside_share: float = 0.25
    reserved_share: float = 1 / 16
    share_tokens: int = 64
    lookahead: int = 8
    limits: Limits = Limits()


APP_CENTRIC: Final = SchedulingPolicy()
REQUEST_LEAST_LOADED: Final = SchedulingPolicy(
    "request_least_loaded",
    grouping=False,
    prefix_affinity=False,
    objectives=False,
    streaming_edges=False,
    app_order=False,
    costs=False,
    burst_tokens=1 << 60,
)
REQUEST_FIFO: Final = replace(REQUEST_LEAST_LOADED, name="request_fifo", load_aware=False)
PREFIX_AFFINITY_ONLY: Final = replace(REQUEST_LEAST_LOADED, name="prefix_affinity_only", prefix_affinity=True)

POLICIES: Final = {
    policy.name: policy for policy in (APP_CENTRIC, REQUEST_FIFO, REQUEST_LEAST_LOADED, PREFIX_AFFINITY_ONLY)
}
