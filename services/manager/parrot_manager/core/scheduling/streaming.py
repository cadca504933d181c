"""Streaming edges: whether a consumer goes to an engine while its producers decode.

It does when the prefill that hides behind the producers' decoding is worth more than the KV it holds
meanwhile. The price of KV rises with what is taken, to infinity as the budget runs out.

Prefill hides where decoding leaves arithmetic idle, as on a GPU for small pieces, or where the producers are
elsewhere. On a CPU it makes its own producer's steps longer by all it saves, and by the price of its pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_manager.core.estimates import Lengths
from parrot_manager.core.scheduling.engines import Booking, EngineLoad

ROUND_TRIP_MS: Final = 5.0
"""What a consumer waits for, beside its prefill, when it is sent after its producers' ends: the commit."""
LAST_CHUNK_TOKENS: Final = 64
"""Of each input, what is prefilled only when it is complete."""
PIECES_COST: Final = 0.25
"""What prefill in pieces is taken to cost more than in one, as a share, where the engine has not said."""
CHOICE_MS: Final = 50.0
"""What it is worth to choose the engine later, when more is known of them all."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What is known of a consumer's inputs.

    Attributes:
        remaining_ms: until the last producer is done, as predicted.
        pending_tokens: that the producers will have made, in all.
        early_tokens: those of them that are prefilled before the last is complete.
        hurry: what a ms of them weighs, by the engines where they run.
    """

    remaining_ms: float
    pending_tokens: int
    early_tokens: int
    hurry: dict[str, float]

    @property
    def engines(self) -> tuple[str, ...]:
        """Where the producers run."""
        return tuple(self.hurry)

    @classmethod
    def of(cls, producers: list[tuple[str, Booking]], now_ms: int) -> Edge:
        """From where the producers run, and as what."""
        hurry: dict[str, float] = {}
        for engine_id, booking in producers:
            hurry[engine_id] = hurry.get(engine_id, 0.0) + booking.weight
        return cls(
            max(remaining_ms(booking, now_ms) for _, booking in producers),
            sum(booking.output.q50 for _, booking in producers),
            sum(max(0, booking.output.q50 - LAST_CHUNK_TOKENS) for _, booking in producers),
            hurry,
        )


def remaining_ms(booking: Booking, now_ms: int) -> float:
    """How long an attempt will still take; one that takes longer than expected, a tenth of that more."""
    return max(booking.ends_ms - now_ms, 0.1 * (booking.ends_ms - booking.begins_ms))


@dataclass(frozen=True, slots=True)
class Worth:
    """What it is worth to send a consumer now, in ms.

    Attributes:
        hidden_ms: of its prefill, what it does not wait for when its inputs are complete.
        gain_ms: what the application gains, all it loses itself taken off.
        harm_ms: what each other output on the engine loses, beside prefill that has to be done anyway.
    """

    hidden_ms: float
    gain_ms: float
    harm_ms: float


def worth(load: EngineLoad, edge: Edge, new_tokens: int, output: Lengths) -> Worth:
    """What it is worth to send a consumer of so many tokens to an engine now."""
    early_tokens = new_tokens + edge.early_tokens
    prefill_ms = early_tokens / load.pace.prefill_per_ms
    said = load.load
    if said.prefill_token_ms:
        # What calls took has waits for others in it; alone it is no longer than a step and its tokens.
        prefill_ms = min(prefill_ms, said.step_ms + early_tokens * said.prefill_token_ms)
    hidden_ms = min(prefill_ms, edge.remaining_ms)
    slower_ms, harm_ms = 0.0, PIECES_COST * hidden_ms
    if said.prefill_token_ms and prefill_ms:
        beside_ms = new_tokens * said.prefill_token_ms + edge.early_tokens * said.piece_token_ms
        slower_ms = beside_ms * hidden_ms / prefill_ms
        harm_ms = max(0.0, slower_ms - hidden_ms)
    if load.engine.id not in edge.hurry:
        # The producers are not there to be slower.
        slower_ms = 0.0
    free = load.kv_tokens - load.private_tokens - load.used_tokens - output.q50
    held = new_tokens + edge.pending_tokens / 2
    if free <= held:
        return Worth(hidden_ms, float("-inf"), harm_ms)
    # Elsewhere, each step's text crosses the bus.
    away = sum(engine_id != load.engine.id for engine_id in edge.engines)
    price = held / (free - held)
    saved_ms = hidden_ms + ROUND_TRIP_MS * (1 - 0.5 * (away > 0))
    gain_ms = saved_ms - slower_ms - CHOICE_MS - price * edge.remaining_ms
    return Worth(hidden_ms, gain_ms, harm_ms)
