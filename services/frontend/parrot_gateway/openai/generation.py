"""How texts are generated, in the words of OpenAI's chat and completion requests."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from parrot_gateway.openai.joining import Joining
from parrot_gateway.openai.members import StreamOptions
from parrot_gateway.sampling import (
    MAX_TOKENS,
    GuideSettings,
    LogitBias,
    SamplingSettings,
    TokenId,
    compile_sampling,
)
from parrot_gateway.sent import Sent, TextList
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

CHOICES: Final = 128
_SEED_MASK: Final = (1 << 64) - 1


def _stops(given: list[str]) -> list[str]:
    return [text for text in given if text]


class Generation(Sent):
    """What chat and completion requests have in common."""

    model: str = Field(description="the model to use; empty: any", max_length=limits.NAME_CHARS)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 is greedy; 1 by default")
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=CHOICES, description="choices, each with a seed of its own")
    stop: Annotated[TextList, AfterValidator(_stops)] | None = Field(
        default=None, description=f"a text, or up to {limits.STOP_TEXTS}; the output ends before any of them"
    )
    seed: int | None = Field(default=None, ge=-(1 << 63), le=(1 << 63) - 1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, description="taken, and not looked at")
    parrot: Joining | None = Field(default=None, description="what OpenAI's API has no words for")
    # Not OpenAI's: the words of vLLM and others, sent by `extra_body`.
    top_k: int | None = Field(default=None, ge=-1, le=MAX_TOKENS)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    min_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None

    @property
    def choices(self) -> int:
        """How many texts are asked for of each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream tells of the tokens used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Checks what goes together.

        Raises:
            Fault: `invalid_request`.
        """
        if self.stream_options is not None and not self.stream:
            raise Fault(
                errors.INVALID_REQUEST, "stream_options: only a stream has them", field="stream_options"
            )
        if self.parrot is not None and self.parrot.output is not None and self.choices > 1:
            raise Fault(
                errors.INVALID_REQUEST, "parrot.output: one variable holds one choice", field="parrot.output"
            )

    def sampling(
        self,
        max_tokens: int | None,
        logprobs: int | None,
        schema: dict[str, Any] | None = None,
        schema_field: str = "response_format",
    ) -> common_pb2.Sampling:
        """The sampling of the first choice.

        Args:
            logprobs: alternatives that are told with each token; None: no logprobs.
            schema: the JSON schema of the text; None: it may be any.
            schema_field: the member of the request it comes from.

        Raises:
            Fault: `invalid_sampling`, `too_large`, `invalid_text`, with the path of the setting.
        """
        wanted: dict[str, Any] = {
            "max_tokens": max_tokens,
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "logprobs": logprobs,
            "guide": None if schema is None else GuideSettings(json_schema=_text_of(schema)),
        }
        given = {name: setting for name, setting in wanted.items() if setting is not None}
        try:
            return compile_sampling(SamplingSettings(**given), "")
        except Fault as fault:
            raise _renamed(fault, schema_field) from None


def nth_choice(sampling: common_pb2.Sampling, place: int) -> common_pb2.Sampling:
    """The sampling of a further choice: a seed counts up, past its end from the least one on."""
    if not place or not sampling.HasField("seed"):
        return sampling
    made = common_pb2.Sampling()
    made.CopyFrom(sampling)
    made.seed = ((sampling.seed + (1 << 63) + place) & _SEED_MASK) - (1 << 63)
    return made


def _text_of(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise Fault(errors.INVALID_REQUEST, "the schema is nested too deeply") from None


def _renamed(fault: Fault, schema_field: str) -> Fault:
    """A setting's fault, its field named as OpenAI's requests name it."""
    field = fault.field.removeprefix(".")
    if field.startswith("guide"):
        field = schema_field
    message = fault.message.replace(fault.field, field, 1) if fault.field else fault.message
    return Fault(fault.kind, message, field=field)
