"""How an output is generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from parrot.guide import Guide
from parrot.text import check_text

MAX_TOKENS = 1_048_576
STOP_TEXTS = 16
STOP_BYTES = 1024
STOP_TOKEN_IDS = 64
TOKEN_ID = (1 << 31) - 1
LOGIT_BIASES = 300
LOGPROBS = 20

# The server's name for each setting, and its default there: what says nothing new is not sent.
_WIRE: Final[Mapping[str, tuple[str, object]]] = {
    "max_gen_length": ("max_tokens", None),
    "temperature": ("temperature", None),
    "top_p": ("top_p", 1),
    "top_k": ("top_k", 0),
    "min_p": ("min_p", 0),
    "seed": ("seed", None),
    "ignore_tokenizer_eos": ("ignore_eos", False),
    "stop_str": ("stop", ()),
    "stop_token_ids": ("stop_token_ids", ()),
    "min_tokens": ("min_tokens", 0),
    "presence_penalty": ("presence_penalty", 0),
    "frequency_penalty": ("frequency_penalty", 0),
    "repetition_penalty": ("repetition_penalty", 1),
    "logprobs": ("logprobs", None),
    "prompt_logprobs": ("prompt_logprobs", None),
}


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How an output is generated; checked when it is made.

    Every setting can be given by name; the positions of the first are those of the prototype's programs.

    Attributes:
        temperature: 0 (greedy) to 2.
        top_p: the share of probability sampled from; more than 0, at most 1.
        max_gen_length: the longest output, in tokens, at least 1.
        ignore_tokenizer_eos: generate up to `max_gen_length` even when the model wants to end.
        stop_token_ids: up to 64 tokens that end the output and are not in it.
        stop_str: a text, or up to 16 of them, before which the output ends.
        presence_penalty: taken off tokens that the output has already; -2 to 2.
        frequency_penalty: the same, as often as it has them.
        n: 1; for several texts, make several calls.
        best_of: 1.
        logit_bias: token id to what is added to its logit, -100 to 100; 300 tokens at most; kept as pairs.
        repetition_penalty: above 1: makes tokens of prompt and output less likely; below 1: likelier; at
            most 10; 0 stands for 1.
        length_penalty: 0.
        top_k: how many of the likeliest tokens are sampled from; 0: all.
        seed: makes sampling repeatable; a signed 64-bit integer.
        min_tokens: the shortest output, in tokens.
        min_p: leaves out tokens less likely than this share of the likeliest; 0 to 1.
        logprobs: records the output's tokens with their logprobs, and this many alternatives each, 0 to
            20; None: no logprobs.
        prompt_logprobs: the same for the prompt's tokens.
        guide: what the output must be.

    Raises:
        ValueError: a field is out of range.
        InvalidText: a text of `stop_str` holds a lone surrogate.
        TypeError: a field is of another type.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_gen_length: int = 512
    ignore_tokenizer_eos: bool = False
    stop_token_ids: Sequence[int] = ()
    stop_str: str | tuple[str, ...] | list[str] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    best_of: int = 1
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = ()
    repetition_penalty: float = 1.0
    length_penalty: float = 0.0
    _: KW_ONLY
    top_k: int = 0
    seed: int | None = None
    min_tokens: int = 0
    min_p: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Guide | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        _check_integer("max_gen_length", self.max_gen_length, 1, MAX_TOKENS)
        _check_integer("top_k", self.top_k, 0, MAX_TOKENS)
        _check_integer("min_tokens", self.min_tokens, 0, self.max_gen_length)
        _check_optional("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        _check_optional("logprobs", self.logprobs, 0, LOGPROBS)
        _check_optional("prompt_logprobs", self.prompt_logprobs, 0, LOGPROBS)
        if not isinstance(self.guide, (Guide, type(None))):
            raise TypeError(f"guide is a P.Guide, not {type(self.guide).__name__}")
        object.__setattr__(self, "stop_str", _stops(self.stop_str))
        object.__setattr__(self, "stop_token_ids", _stop_tokens(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias or ()))
        object.__setattr__(self, "repetition_penalty", self.repetition_penalty or 1.0)

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("temperature", 0, 2),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
            ("repetition_penalty", 0, 10),
        ):
            _check_number(name, getattr(self, name), low, high)
        if self.top_p == 0:
            raise ValueError("top_p must be more than 0")
        for name, only in (("n", 1), ("best_of", 1), ("length_penalty", 0)):
            if getattr(self, name) != only:
                raise ValueError(f"{name} is {getattr(self, name)!r}; the server knows {only} only")

    def to_wire(self) -> dict[str, Any]:
        """The settings as the server's API names them; those at the API's default are left out."""
        wire: dict[str, Any] = {}
        for name, (sent_as, default) in _WIRE.items():
            given = getattr(self, name)
            if given != default:
                wire[sent_as] = list(given) if isinstance(given, tuple) else given
        if self.logit_bias:
            wire["logit_bias"] = {str(token): bias for token, bias in dict(self.logit_bias).items()}
        if self.guide is not None:
            wire["guide"] = self.guide.to_wire()
        return wire


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    # In this order: an integer may be beyond a double, and only a double can be NaN.
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")


def _check_optional(name: str, value: object, low: int, high: int) -> None:
    if value is not None:
        _check_integer(name, value, low, high)


def _stops(stop: object) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(texts, (tuple, list)) or not all(isinstance(text, str) for text in texts):
        raise TypeError("stop_str is a text, or a list of them")
    if len(texts) > STOP_TEXTS:
        raise ValueError(f"stop_str has {len(texts)} texts; the limit is {STOP_TEXTS}")
    for text in texts:
        if not 1 <= len(check_text(text, "stop_str").encode()) <= STOP_BYTES:
            raise ValueError(f"a text of stop_str has 1 to {STOP_BYTES} bytes of UTF-8")
    return tuple(texts)


def _stop_tokens(tokens: object) -> tuple[int, ...]:
    if not isinstance(tokens, (tuple, list)):
        raise TypeError("stop_token_ids is a list of token ids")
    if len(tokens) > STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids has {len(tokens)} tokens; the limit is {STOP_TOKEN_IDS}")
    for token in tokens:
        _check_integer("a token of stop_token_ids", token, 0, TOKEN_ID)
    return tuple(tokens)


def _biases(bias: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(bias, (Mapping, tuple)):
        raise TypeError("logit_bias maps token ids to numbers")
    pairs = tuple(bias.items()) if isinstance(bias, Mapping) else bias
    if len(pairs) > LOGIT_BIASES:
        raise ValueError(f"logit_bias has {len(pairs)} tokens; the limit is {LOGIT_BIASES}")
    for token, value in pairs:
        _check_integer("a token of logit_bias", token, 0, TOKEN_ID)
        _check_number("a bias of logit_bias", value, -100, 100)
    return pairs
