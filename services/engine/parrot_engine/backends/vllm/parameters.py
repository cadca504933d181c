"""`Sampling` as vLLM's `SamplingParams`, and vLLM's outputs as steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from parrot_engine.backends.base import (
    BackendError,
    FinishReason,
    Phases,
    Sampling,
    Step,
    TokenLogprobs,
    UnsupportedError,
)
from parrot_engine.backends.vllm.schemas import readable
from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.sampling import Guide

UNSIGNED_64: Final = 1 << 64


class GuideError(UnsupportedError):
    """A guide can't be followed; says which and why."""


def output_params(sampling: Sampling, errand: Errand) -> Any:
    """`SamplingParams` of an output.

    Raises:
        UnsupportedError: the sampling contradicts itself.
        BackendError: vLLM does not take it.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    if sampling.guide is not None and sampling.min_tokens:
        raise UnsupportedError("an output with a guide ends where the guide ends: min_tokens must be 0")
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        # vLLM takes -1 for no seed; its twin as an unsigned number seeds the same.
        seed=None if sampling.seed is None else sampling.seed % UNSIGNED_64,
        # Behind the end of a guide nothing may follow.
        ignore_eos=sampling.ignore_eos and sampling.guide is None,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        structured_outputs=None if sampling.guide is None else _guided(sampling.guide),
        skip_reading_prefix_cache=None if errand.cache else True,
        extra_args=errand.to_wire(),
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


async def check_guide(params: Any, sampling: Sampling) -> None:
    """Checks an output's guide, off the event loop: that may take a while.

    Raises:
        GuideError: it is not valid, or asks for what can't be done.
    """
    if sampling.guide is None:
        return
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    try:
        await asyncio.to_thread(validate_xgrammar_grammar, params)
    except Exception as error:
        # The grammar library raises what it likes; it is the guide that is wrong, whatever it says.
        raise GuideError(f"the {sampling.guide.kind} guide can't be used: {error}") from error


def fill_params(errand: Errand) -> Any:
    """`SamplingParams` of a fill: the one token that vLLM has to sample is dropped."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        skip_reading_prefix_cache=None if errand.cache else True,
        extra_args=errand.to_wire(),
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def step_of(output: Any, prompt: Sequence[int], sampling: Sampling, asked_at: float) -> Step:
    """One of vLLM's outputs as a step.

    Args:
        asked_at: when the output was asked for, on the monotonic clock.

    Raises:
        GuideError: the output's guide can't be followed.
        BackendError: the output ended for another reason that is none of the model's.
    """
    completion = output.outputs[0]
    reason = _finish_reason(completion)
    return Step(
        text=completion.text,
        token_ids=tuple(completion.token_ids),
        prompt_tokens=len(prompt),
        cached_tokens=output.num_cached_tokens or 0,
        finish_reason=reason,
        phases=_phases(output.metrics, asked_at) if reason is not None else None,
        logprobs=_logprobs(completion.token_ids, completion.logprobs, sampling.logprobs),
        # There is nothing before the first token to tell how likely it is.
        prompt_logprobs=_logprobs(prompt[1:], (output.prompt_logprobs or ())[1:], sampling.prompt_logprobs),
    )


def _guided(guide: Guide) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if guide.kind == "json_schema":
        return StructuredOutputsParams(json=readable(guide.spec))
    if guide.kind == "regex":
        return StructuredOutputsParams(regex=guide.spec)
    if guide.kind == "grammar":
        return StructuredOutputsParams(grammar=guide.spec)
    return StructuredOutputsParams(choice=list(guide.choices))


def _finish_reason(completion: Any) -> FinishReason | None:
    reason = completion.finish_reason
    if reason is None:
        return None
    if reason == "stop":
        return "stop_text" if isinstance(completion.stop_reason, str) else "stop"
    if reason == "length":
        return "length"
    if completion.stop_reason:
        raise GuideError(str(completion.stop_reason))
    raise BackendError(f"vLLM ended the output: {reason}")


def _phases(metrics: Any, asked_at: float) -> Phases:
    """From vLLM's timestamps, which are of the machine's one monotonic clock."""
    return Phases(
        queue_ms=max(0.0, metrics.scheduled_ts - asked_at) * 1000,
        prefill_ms=(metrics.first_token_ts - metrics.scheduled_ts) * 1000,
        decode_ms=(metrics.last_token_ts - metrics.first_token_ts) * 1000,
    )


def _logprobs(
    token_ids: Sequence[int], rows: Sequence[Mapping[int, Any]] | None, asked: int | None
) -> tuple[TokenLogprobs, ...]:
    if not rows or asked is None:
        return ()
    return tuple(_row(token, row, asked) for token, row in zip(token_ids, rows, strict=False))


def _row(token_id: int, row: Mapping[int, Any], asked: int) -> TokenLogprobs:
    ranked = sorted((entry.rank, token, entry.logprob) for token, entry in row.items())
    likeliest = tuple((token, logprob) for rank, token, logprob in ranked if rank <= asked)
    return TokenLogprobs(token_id, row[token_id].logprob, likeliest)
