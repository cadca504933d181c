"""How an output is generated, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from parrot_runtime import limits

GuideKind = Literal["json_schema", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Guide:
    """What the output must be.

    Attributes:
        spec: a JSON schema as JSON text, a regular expression, a grammar in EBNF (GBNF), or for
            `choice` nothing.
        choices: the texts to choose from.
    """

    kind: GuideKind
    spec: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an output is generated.

    Stop texts count only after `min_tokens`; the output ends before the first that does.

    Attributes:
        stop_token_ids: tokens that end the output and are not in its text.
        logit_bias: added to the logit of a token, -100 to 100.
        logprobs: alternatives to report with each token; None: no logarithms at all.
        prompt_logprobs: the same for the prompt's tokens.
        resumed: the output's first part, which was streamed before and is in the context already: a
            guide goes on behind it.

    Raises:
        ValueError: a setting is out of its range; names the setting.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Guide | None = None
    resumed: str = ""

    def __post_init__(self) -> None:
        for name, holds, rule in self._rules():
            if not holds:
                raise ValueError(f"{name} must be {rule}")

    def _rules(self) -> Iterable[tuple[str, bool, str]]:
        yield "max_tokens", self.max_tokens >= 1, "at least 1"
        yield "min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"
        yield "temperature", 0 <= self.temperature <= 2, "between 0 and 2"
        yield "top_p", 0 < self.top_p <= 1, "above 0 and at most 1"
        yield "min_p", 0 <= self.min_p <= 1, "between 0 and 1"
        yield "top_k", self.top_k >= 0, "0 or more"
        yield "stop", all(self.stop), "texts that are not empty"
        yield "stop_token_ids", all(token >= 0 for token in self.stop_token_ids), "token ids"
        for name in ("presence_penalty", "frequency_penalty"):
            yield name, -2 <= getattr(self, name) <= 2, "between -2 and 2"
        yield "repetition_penalty", 0 < self.repetition_penalty <= 10, "above 0 and at most 10"
        yield (
            "logit_bias",
            len(self.logit_bias) <= limits.LOGIT_BIASES,
            f"for {limits.LOGIT_BIASES} tokens at most",
        )
        yield (
            "logit_bias",
            all(token >= 0 and -100 <= bias <= 100 for token, bias in self.logit_bias.items()),
            "token ids with biases between -100 and 100",
        )
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, name)
            yield name, asked is None or 0 <= asked <= limits.LOGPROBS, f"between 0 and {limits.LOGPROBS}"
        if self.guide is not None:
            yield "guide", bool(self.guide.spec or self.guide.choices), "a specification that is not empty"

    def why_not_resumable(self) -> str:
        """Why an output of this sampling can't go on as if it had never been broken off; empty: it can.

        A draw depends on those before it, and penalties on the tokens so far: neither is in the text.
        """
        if self.temperature > 0 and self.seed is not None:
            return "it was sampled with a seed"
        if self.presence_penalty or self.frequency_penalty or not math.isclose(self.repetition_penalty, 1):
            return "it was sampled with penalties"
        return ""
