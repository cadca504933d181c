"""A program with its texts turned into tokens, and checked against the window before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from parrot_engine.backends.base import ModelInfo, Sampling
from parrot_engine.inputs import InputValue
from parrot_engine.text.tokens import PromptTokenizer
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, transforms
from parrot_runtime.errors import Fault

INLINE_CHARS: Final = 16_384
"""Longer texts are tokenized off the event loop."""


@dataclass(frozen=True, slots=True)
class FillStep:
    """Tokens to append to a context."""

    context_id: str
    parent_context_id: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class GenerateStep:
    """An output to generate.

    Attributes:
        reserve_tokens: what of the window is needed for the steps after it.
    """

    context_id: str
    parent_context_id: str
    sampling: common_pb2.Sampling
    output: engine_pb2.VariableSink
    reserve_tokens: int

    def resolve(self, left_tokens: int) -> Sampling:
        """The sampling for an output when the window has `left_tokens` left.

        Raises:
            Fault: `invalid_sampling`.
        """
        asked = self.sampling
        try:
            return Sampling(
                max_tokens=asked.max_tokens or max(1, left_tokens - self.reserve_tokens),
                min_tokens=asked.min_tokens,
                temperature=asked.temperature,
                top_p=asked.top_p or 1.0,
                top_k=asked.top_k,
                seed=asked.seed if asked.HasField("seed") else None,
                ignore_eos=asked.ignore_eos,
                stop=tuple(asked.stop),
            )
        except ValueError as error:
            raise Fault(errors.INVALID_SAMPLING, str(error), variable_id=self.output.variable_id) from None


PlanStep = FillStep | GenerateStep


async def make_plan(
    program: engine_pb2.RunProgram,
    values: Mapping[str, InputValue],
    tokenizer: PromptTokenizer,
    info: ModelInfo,
) -> list[PlanStep]:
    """The program's steps, ready to run.

    Raises:
        Fault: `prompt_too_long`, `empty_prompt`, `transform_failed`, `invalid_sampling`, or
            `engine_error` for a program that is not well formed.
    """
    _check_shape(program)
    fills = await _tokenize(program, values, tokenizer)
    _start_prompts(program, fills, tokenizer)
    steps = _reserve(program, fills)
    _check_window(steps, len(tokenizer.bos_ids), info)
    return steps


def _check_shape(program: engine_pb2.RunProgram) -> None:
    made: set[str] = set()
    for operation in program.operations:
        kind = operation.WhichOneof("kind")
        if kind is None:
            raise _malformed("an operation of a kind this engine does not know")
        task = operation.fill if kind == "fill" else operation.generate
        if task.context_id not in made and task.parent_context_id and task.parent_context_id not in made:
            raise _malformed(f"a fork of {task.parent_context_id}, a context it did not make")
        made.add(task.context_id)
        if kind == "generate":
            apply_transforms("", operation.generate.output.transforms, operation.generate.output.variable_id)


def _malformed(what: str) -> Fault:
    return Fault(errors.ENGINE_ERROR, f"the program has {what}; are manager and engine of one version?")


async def _tokenize(
    program: engine_pb2.RunProgram, values: Mapping[str, InputValue], tokenizer: PromptTokenizer
) -> dict[int, list[int]]:
    """The tokens of each fill, by its place in the program."""
    fills = {
        place: operation.fill
        for place, operation in enumerate(program.operations)
        if operation.WhichOneof("kind") == "fill"
    }
    chars = sum(len(value.text) for value in values.values())
    chars += sum(len(fill.template_text) for fill in fills.values())

    def encode_all() -> dict[int, list[int]]:
        # A value that fills many holes is encoded once: megabytes times holes would be the end of us.
        known: dict[bytes, list[int]] = {}
        found: dict[int, list[int]] = {}
        for place, fill in fills.items():
            source = fill.variable.SerializeToString(deterministic=True)
            tokens = known.get(source) if source else None
            found[place] = _encode(fill, values, tokenizer) if tokens is None else tokens
            if source:
                known[source] = found[place]
        return found

    return encode_all() if chars <= INLINE_CHARS else await asyncio.to_thread(encode_all)


def _encode(fill: engine_pb2.Fill, values: Mapping[str, InputValue], tokenizer: PromptTokenizer) -> list[int]:
    kind = fill.WhichOneof("content")
    if kind == "template_text":
        return tokenizer.encode_template(fill.template_text)
    if kind == "tokens":
        return list(fill.tokens.ids)
    if kind == "variable":
        return tokenizer.encode_value(_transformed(fill.variable, values))
    raise _malformed("a fill of a kind this engine does not know")


def _transformed(source: engine_pb2.VariableSource, values: Mapping[str, InputValue]) -> str:
    return apply_transforms(values[source.variable_id].text, source.transforms, source.variable_id)


def apply_transforms(text: str, names: Iterable[str], variable_id: str) -> str:
    """`text` transformed.

    Raises:
        Fault: `transform_failed`, when this engine does not know one.
    """
    try:
        return transforms.apply(text, names)
    except KeyError as error:
        raise Fault(
            errors.TRANSFORM_FAILED,
            f"there is no transform {error.args[0]!r}; there are {', '.join(sorted(transforms.TRANSFORMS))}",
            variable_id=variable_id,
        ) from None


def _start_prompts(
    program: engine_pb2.RunProgram, fills: dict[int, list[int]], tokenizer: PromptTokenizer
) -> None:
    """Puts the beginning-of-sequence token before the first token of each root context."""
    begun: set[str] = set()
    for place, operation in enumerate(program.operations):
        fill = operation.fill
        if place not in fills:
            continue
        if fill.context_id not in begun and fill.parent_context_id not in begun and fills[place]:
            fills[place] = tokenizer.start_prompt(fills[place])
        if fills[place] or fill.parent_context_id in begun:
            begun.add(fill.context_id)


def _reserve(program: engine_pb2.RunProgram, fills: dict[int, list[int]]) -> list[PlanStep]:
    """The steps, each output with what its context and the forks of it still need later."""
    needed: dict[str, int] = {}
    steps: list[PlanStep] = []
    for place, operation in reversed(list(enumerate(program.operations))):
        step: PlanStep
        if place in fills:
            fill = operation.fill
            step = FillStep(fill.context_id, fill.parent_context_id, fills[place])
            own = len(step.token_ids)
        else:
            task = operation.generate
            later = needed.get(task.context_id, 0)
            step = GenerateStep(task.context_id, task.parent_context_id, task.sampling, task.output, later)
            own = task.sampling.max_tokens or 1
        total = needed[step.context_id] = needed.get(step.context_id, 0) + own
        if step.parent_context_id:
            needed[step.parent_context_id] = max(needed.get(step.parent_context_id, 0), total)
        steps.append(step)
    return steps[::-1]


def _check_window(steps: list[PlanStep], bos_tokens: int, info: ModelInfo) -> None:
    """Refuses what can't fit, counting every earlier output at its full length."""
    length: dict[str, int] = {}
    for step in steps:
        at = length.get(step.context_id, length.get(step.parent_context_id, 0))
        if isinstance(step, FillStep):
            at += len(step.token_ids)
        else:
            _check_fits(step, at, bos_tokens, info)
            at += step.sampling.max_tokens or 1
        length[step.context_id] = at


def _check_fits(step: GenerateStep, prompt_tokens: int, bos_tokens: int, info: ModelInfo) -> None:
    window = info.context_window_tokens
    variable_id = step.output.variable_id
    if prompt_tokens <= bos_tokens:
        raise Fault(
            errors.EMPTY_PROMPT,
            "the prompt before this output has no text; put some before it",
            variable_id=variable_id,
        )
    if prompt_tokens >= window:
        raise Fault(
            errors.PROMPT_TOO_LONG,
            f"the prompt is {prompt_tokens:,} tokens; the window of {info.model} is {window:,} tokens, "
            "output included; shorten the prompt",
            variable_id=variable_id,
        )
    asked = step.sampling.max_tokens
    if prompt_tokens + asked > window:
        raise Fault(
            errors.PROMPT_TOO_LONG,
            f"the prompt of {prompt_tokens:,} tokens and an output of up to {asked:,} tokens exceed the "
            f"window of {info.model}, {window:,} tokens; shorten the prompt or lower max_tokens",
            variable_id=variable_id,
        )
    step.resolve(window - prompt_tokens)
