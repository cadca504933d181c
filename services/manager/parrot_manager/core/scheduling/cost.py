"""What it costs to run a call on an engine, in ms: its own time, and that of those who are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_manager.core.estimates import Lengths
from parrot_manager.core.paces import weight
from parrot_manager.core.scheduling.engines import EngineLoad
from parrot_manager.core.scheduling.policies import SchedulingPolicy

EVICTED_USE: Final = 0.5
"""How likely a shared context that must go would have been used again."""
IDLE_STEPS: Final = 2.0
"""Throughput calls may make the steps of others so many times as long as one with next to nothing in it."""
TRANSFER_MS: Final = 3.0
"""What an input costs that comes over the bus while it is made, instead of from the engine itself."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`total` is what is compared; all in ms but the tokens.

    Attributes:
        wait_ms: what is prefilled before.
        service_ms: its own prefill, and its output at the batch it joins.
        harm_ms: what those lose who run there, weighed by their hurry.
        eviction_ms: computing again what must go from KV.
        transfer_ms: inputs that are made elsewhere.
        again_ms: computing what an engine with room has in KV, again: a second copy, and time of others'.
        cached_tokens: of its prompt, those that are in KV there.
        need_tokens: of KV, beside the shared contexts that are there.
        weight: of its own time.
    """

    wait_ms: float
    service_ms: float
    harm_ms: float
    eviction_ms: float
    transfer_ms: float
    again_ms: float
    cached_tokens: int
    new_tokens: int
    need_tokens: int
    weight: float = 1.0

    @property
    def total(self) -> float:
        """The weighed sum."""
        own_ms = self.wait_ms + self.service_ms + self.transfer_ms
        return self.weight * own_ms + self.harm_ms + self.eviction_ms + self.again_ms


def reckon(
    load: EngineLoad,
    output: Lengths,
    now_ms: int,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    held_tokens: int,
    own_weight: float = 1.0,
    elsewhere_tokens: int = 0,
    transfers: int = 0,
) -> Cost:
    """The cost of a call of so many tokens on an engine that has `cached_tokens` of them in KV.

    `held_tokens`: of those, what is in shared contexts, and so needs no memory of its own.
    `elsewhere_tokens`: those that the engine with most of them has, of the engines with room.
    """
    pace = load.pace
    new_tokens = max(0, prompt_tokens - cached_tokens)
    need = max(0, prompt_tokens - held_tokens) + output.q50
    added = weight(1, need)
    prefill_ms = new_tokens / pace.prefill_per_ms
    step_ms = pace.line.step_ms(load.step_weight + added)
    slower_ms = prefill_ms + pace.line.per_token_ms * added * output.q50
    over = load.private_tokens + load.used_tokens + load.idle_tokens + need - load.kv_tokens
    evicted = min(over, load.idle_tokens) if over > 0 else 0
    return Cost(
        wait_ms=load.backlog_ms(now_ms),
        service_ms=prefill_ms + output.q50 * step_ms,
        harm_ms=load.hurry * slower_ms,
        eviction_ms=EVICTED_USE * evicted / pace.prefill_per_ms,
        transfer_ms=TRANSFER_MS * transfers,
        again_ms=own_weight * max(0, elsewhere_tokens - cached_tokens) / pace.prefill_per_ms,
        cached_tokens=cached_tokens,
        new_tokens=new_tokens,
        need_tokens=need,
        weight=own_weight,
    )


def fits(load: EngineLoad, need_tokens: int) -> bool:
    """Whether KV memory holds a call with all that runs; an engine where nothing runs takes any."""
    taken = load.private_tokens + load.used_tokens
    return not load.running or taken + need_tokens <= load.kv_tokens


def within_latency(load: EngineLoad, need_tokens: int, policy: SchedulingPolicy) -> bool:
    """Whether a patient call leaves an engine's steps short enough for the others that run there."""
    if not load.urgent:
        return True
    line = load.pace.line
    most_ms = max(policy.latency_step_ms, IDLE_STEPS * line.fixed_ms)
    return line.step_ms(load.step_weight + weight(1, need_tokens)) <= most_ms
