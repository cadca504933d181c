"""Why a call goes where it goes, for people."""

from __future__ import annotations

from parrot_manager.core.scheduling.cost import Cost


def explain(engine_id: str, prompt_tokens: int, cost: Cost, other: tuple[str, float] | None) -> str:
    """Such as "engine-2: 1,480 of 1,520 tokens in KV, +0.3 s against engine-1".

    The time is what the next best engine would have cost more, in ms: `other`.
    """
    parts = [f"{engine_id}: {cost.cached_tokens:,} of {prompt_tokens:,} tokens in KV"]
    if cost.wait_ms >= 50:
        parts.append(f"{cost.wait_ms / 1000:.1f} s of prefill before it")
    if other is None:
        parts.append("no other has room")
    else:
        name, more_ms = other
        parts.append(f"+{more_ms / 1000:.1f} s against {name}" if more_ms >= 50 else f"as good as {name}")
    return ", ".join(parts)


def explain_load(engine_id: str, running: int, capacity: int) -> str:
    """For policies that count calls."""
    return f"{engine_id}: least loaded, {running} of {capacity} places taken"


def explain_turn(engine_id: str) -> str:
    """For policies that look at nothing."""
    return f"{engine_id}: its turn"


def explain_prefix(engine_id: str, prompt_tokens: int, cached_tokens: int) -> str:
    """For policies that look at prefixes alone."""
    return f"{engine_id}: {cached_tokens:,} of {prompt_tokens:,} tokens in KV"


def explain_stream(engine_id: str, hidden_ms: float, producers: tuple[str, ...]) -> str:
    """For a call that is sent while its input is made."""
    return f"{engine_id}: {hidden_ms / 1000:.1f} s of prefill hidden behind {', '.join(producers)}"
