"""A sampling that is out of range is not made, and says which setting is."""

from __future__ import annotations

import pytest

from parrot_engine.sampling import Guide, Sampling


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": 4, "min_tokens": 5},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.1},
        {"stop": ("",)},
        {"stop_token_ids": (-1,)},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("nan")},
        {"repetition_penalty": 0.0},
        {"logit_bias": {5: 101.0}},
        {"logit_bias": {-5: 1.0}},
        {"logit_bias": dict.fromkeys(range(301), 1.0)},
        {"logprobs": 21},
        {"prompt_logprobs": -1},
        {"guide": Guide("regex")},
    ],
    ids=" ".join,
)
def test_a_sampling_out_of_range_is_not_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{list(wrong)[-1]} must be"):
        Sampling(**({"max_tokens": 1} | wrong))  # type: ignore[arg-type]
