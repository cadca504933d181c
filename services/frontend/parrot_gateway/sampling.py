"""How an output is generated, as clients say it, and as the manager takes it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from parrot_gateway.sent import Sent, TextList
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import limits
from parrot_runtime.sampling import check_sampling

MAX_TOKENS: Final = 1_048_576

_TOKEN_ID = re.compile(r"(0|[1-9][0-9]{0,9})")


def _by_token_id(given: object) -> object:
    """JSON's keys are texts, and numbers once they were read; the type refuses what is no object."""
    if not isinstance(given, dict):
        return given
    if not all(type(key) is int or (isinstance(key, str) and _TOKEN_ID.fullmatch(key)) for key in given):
        raise ValueError("its keys are token ids, written as decimal numbers")
    return {int(key): bias for key, bias in given.items()}


def _schema_text(given: object) -> object:
    if not isinstance(given, dict):
        return given
    try:
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


TokenId = Annotated[int, Field(ge=0, le=limits.TOKEN_ID)]
Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[
    dict[TokenId, Bias], BeforeValidator(_by_token_id, json_schema_input_type=dict[str, float])
]
Schema = Annotated[str, BeforeValidator(_schema_text, json_schema_input_type=dict[str, Any] | str)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Logprobs = Annotated[int | None, Field(ge=0, le=limits.LOGPROBS)]


class GuideSettings(Sent):
    """What an output must be: one of these. The engine samples only tokens that keep to it."""

    json_schema: Schema | None = Field(
        default=None,
        description="a JSON schema, as an object or as its JSON text; "
        f"at most {limits.GUIDE_BYTES:,} bytes and {limits.SCHEMA_DEPTH} levels",
        examples=[{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}],
    )
    regex: str | None = Field(default=None, description="a regular expression for the whole output")
    grammar: str | None = Field(default=None, description="a context-free grammar, in GBNF")
    choice: list[str] | None = Field(
        default=None, description=f"the texts to choose from, {limits.GUIDE_CHOICES} at most"
    )

    @model_validator(mode="after")
    def _one(self) -> GuideSettings:
        given = (self.json_schema, self.regex, self.grammar, self.choice)
        if sum(kind is not None for kind in given) != 1:
            raise ValueError("give one of json_schema, regex, grammar and choice")
        return self


class SamplingSettings(Sent):
    """How an output is generated."""

    max_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="longest output; by default what the window leaves"
    )
    min_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=2, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=MAX_TOKENS, description="0: no limit")
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="leaves out tokens less likely than this share of the likeliest"
    )
    seed: int | None = Field(default=None, ge=-(1 << 63), le=(1 << 63) - 1)
    ignore_eos: bool = Field(
        default=False, description="generate up to max_tokens even when the model wants to end"
    )
    stop: TextList = Field(
        default_factory=list, description="a text, or up to 16; the output ends before any of them"
    )
    stop_token_ids: list[TokenId] = Field(
        default_factory=list,
        description=f"up to {limits.STOP_TOKEN_IDS} tokens that end the output and are not in it",
    )
    presence_penalty: Penalty = Field(default=0.0, description="taken off tokens the output has already")
    frequency_penalty: Penalty = Field(default=0.0, description="the same, as often as it has them")
    repetition_penalty: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="above 1: makes tokens of prompt and output less likely; below 1: likelier",
    )
    logit_bias: LogitBias = Field(
        default_factory=dict,
        description="token id to what is added to its logit, -100 to 100; "
        f"{limits.LOGIT_BIASES} tokens at most",
        examples=[{"50256": -100}],
    )
    logprobs: Logprobs = Field(
        default=None,
        description="records the output's tokens with their logprobs, and this many alternatives each",
    )
    prompt_logprobs: Logprobs = Field(default=None, description="the same for the prompt's tokens")
    guide: GuideSettings | None = Field(default=None, description="what the output must be")


def compile_sampling(settings: SamplingSettings, where: str) -> common_pb2.Sampling:
    """The sampling for the manager.

    Raises:
        Fault: `invalid_sampling`, `too_large`, `invalid_text`, with the path of the setting.
    """
    sampling = common_pb2.Sampling(
        max_tokens=settings.max_tokens or 0,
        min_tokens=settings.min_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        seed=settings.seed,
        ignore_eos=settings.ignore_eos,
        stop=settings.stop,
        stop_token_ids=settings.stop_token_ids,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        repetition_penalty=settings.repetition_penalty,
        logit_bias=settings.logit_bias,
        logprobs=settings.logprobs,
        prompt_logprobs=settings.prompt_logprobs,
        guide=_guide(settings.guide),
    )
    check_sampling(sampling, where)
    return sampling


def _guide(guide: GuideSettings | None) -> common_pb2.Guide | None:
    if guide is None:
        return None
    if guide.choice is not None:
        return common_pb2.Guide(choice=common_pb2.Choice(texts=guide.choice))
    texts: dict[str, Any] = {"json_schema": guide.json_schema, "regex": guide.regex, "grammar": guide.grammar}
    return common_pb2.Guide(**{kind: text for kind, text in texts.items() if text is not None})
