"""Whether a program fits the model's window, as far as its values are known."""

from __future__ import annotations

from collections.abc import Mapping

from parrot_engine.backends.base import ModelInfo, Sampling
from parrot_engine.programs.parts import Part
from parrot_engine.programs.script import FillStep, GenerateStep, Script
from parrot_engine.sampling import Guide, GuideKind
from parrot_engine.text.tokens import PromptTokenizer
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault


def check_window(
    script: Script, sizes: Mapping[bytes, int], tokenizer: PromptTokenizer, info: ModelInfo
) -> None:
    """Refuses what can't fit, counting every earlier output at its full length.

    Args:
        sizes: tokens of the variables that are known, by `Part.key`; the others count nothing yet.

    Raises:
        Fault: `prompt_too_long`, `empty_prompt`, `invalid_sampling`, `not_resumable`.
    """
    length: dict[str, int] = {}
    unknown: set[str] = set()
    bos = len(tokenizer.bos_ids)
    for step, reserve_tokens in zip(script.steps, reserves(script, sizes), strict=True):
        at = length.get(step.context_id, length.get(step.parent_context_id, 0))
        if {step.context_id, step.parent_context_id} & unknown:
            unknown.add(step.context_id)
        if isinstance(step, FillStep):
            for part in step.parts:
                if part.source is not None and part.key not in sizes:
                    unknown.add(step.context_id)
                added = sizes.get(part.key, 0) if part.source is not None else len(part.token_ids)
                at += added + (_missing_bos(at, part.token_ids, bos, tokenizer) if added else 0)
        else:
            _check_fits(step, at, bos, info, complete=step.context_id not in unknown)
            resolve(step, info.context_window_tokens - at, reserve_tokens)
            at += step.sampling.max_tokens or 1
        length[step.context_id] = at


def reserves(script: Script, sizes: Mapping[bytes, int]) -> list[int]:
    """By step, what of the window its context and the forks of it still need after it, in tokens."""
    needed: dict[str, int] = {}
    found: list[int] = []
    for step in reversed(script.steps):
        later = needed.get(step.context_id, 0)
        if isinstance(step, FillStep):
            own = sum(_expected(part, sizes) for part in step.parts)
        else:
            own = step.sampling.max_tokens or 1
        needed[step.context_id] = later + own
        if step.parent_context_id:
            parent = needed.get(step.parent_context_id, 0)
            needed[step.parent_context_id] = max(parent, later + own)
        found.append(later)
    return found[::-1]


def resolve(step: GenerateStep, left_tokens: int, reserve_tokens: int) -> Sampling:
    """The sampling for an output when the window has `left_tokens` left.

    Args:
        reserve_tokens: of these, what is needed for the steps after it.

    Raises:
        Fault: `invalid_sampling`, `not_resumable`.
    """
    asked = step.sampling
    longest = asked.max_tokens or max(1, left_tokens - reserve_tokens)
    made = len(step.resumed)
    variable_id = step.outputs[0].variable_id
    try:
        sampling = Sampling(
            max_tokens=max(1, longest - made),
            min_tokens=max(0, min(asked.min_tokens, longest) - made) if made else asked.min_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p or 1.0,
            top_k=asked.top_k,
            min_p=asked.min_p,
            seed=asked.seed if asked.HasField("seed") else None,
            ignore_eos=asked.ignore_eos,
            stop=tuple(asked.stop),
            stop_token_ids=tuple(asked.stop_token_ids),
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            repetition_penalty=asked.repetition_penalty or 1.0,
            logit_bias=dict(asked.logit_bias),
            logprobs=asked.logprobs if asked.HasField("logprobs") else None,
            prompt_logprobs=asked.prompt_logprobs if asked.HasField("prompt_logprobs") else None,
            guide=_guide(asked.guide),
            resumed=step.streamed_text,
        )
    except ValueError as error:
        raise Fault(errors.INVALID_SAMPLING, str(error), variable_id=variable_id) from None
    if sampling.resumed and (reason := sampling.why_not_resumable()):
        message = f"the output was broken off and can't go on as it would have: {reason}; submit it again"
        raise Fault(errors.NOT_RESUMABLE, message, variable_id=variable_id)
    return sampling


def _expected(part: Part, sizes: Mapping[bytes, int]) -> int:
    if part.source is None:
        return len(part.token_ids)
    return sizes.get(part.key, part.source.expected_tokens)


def _guide(guide: common_pb2.Guide) -> Guide | None:
    kind = guide.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "choice":
        return Guide("choice", choices=tuple(guide.choice.texts))
    named: GuideKind = kind
    return Guide(named, spec=str(getattr(guide, kind)))


def _missing_bos(at: int, token_ids: tuple[int, ...], bos: int, tokenizer: PromptTokenizer) -> int:
    """What the first tokens of a root context still want in front."""
    if at:
        return 0
    return len(tokenizer.start_prompt(list(token_ids[:bos]))) - len(token_ids[:bos]) if token_ids else bos


def _check_fits(step: GenerateStep, at: int, bos: int, info: ModelInfo, *, complete: bool) -> None:
    window = info.context_window_tokens
    variable_id = step.outputs[0].variable_id
    if complete and at <= bos:
        raise Fault(
            errors.EMPTY_PROMPT,
            "the prompt before this output has no text; put some before it",
            variable_id=variable_id,
        )
    if at + len(step.resumed) >= window:
        raise Fault(
            errors.PROMPT_TOO_LONG,
            f"the prompt is {at:,} tokens; the window of {info.model} is {window:,} tokens, "
            "output included; shorten the prompt",
            variable_id=variable_id,
        )
    asked = step.sampling.max_tokens
    if at + asked > window:
        raise Fault(
            errors.PROMPT_TOO_LONG,
            f"the prompt of {at:,} tokens and an output of up to {asked:,} tokens exceed the "
            f"window of {info.model}, {window:,} tokens; shorten the prompt or lower max_tokens",
            variable_id=variable_id,
        )
