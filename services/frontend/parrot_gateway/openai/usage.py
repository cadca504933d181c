"""The tokens of a request, as OpenAI counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parrot_proto.common.v1 import common_pb2


def usage_of(prompts: Iterable[Iterable[common_pb2.Usage]]) -> dict[str, Any]:
    """Of the choices of each prompt; a prompt counts once, however many choices it has."""
    prompt_tokens = cached_tokens = output_tokens = 0
    for choices in prompts:
        made = list(choices)
        prompt_tokens += made[0].prompt_tokens
        cached_tokens += made[0].cached_tokens
        output_tokens += sum(usage.output_tokens for usage in made)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
