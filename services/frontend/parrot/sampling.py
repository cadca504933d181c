"""How an output is generated, and the annotations of a function's parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from parrot.variable import check_text

MAX_TOKENS = 1_048_576
STOP_TEXTS = 16
STOP_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How an output is generated; checked when it is made.

    Attributes:
        temperature: 0 (greedy) to 2.
        top_p: the share of probability sampled from; more than 0, at most 1.
        max_gen_length: the longest output, in tokens, at least 1.
        ignore_tokenizer_eos: generate up to `max_gen_length` even when the model wants to end.
        stop_str: a text, or up to 16 of them, before which the output ends.
        top_k: how many of the likeliest tokens are sampled from; 0: all.
        seed: makes sampling repeatable; a signed 64-bit integer.
        min_tokens: the shortest output, in tokens.

    Raises:
        ValueError: a field is out of range.
        InvalidText: a text of `stop_str` holds a lone surrogate.
        TypeError: a field is of another type.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_gen_length: int = 512
    ignore_tokenizer_eos: bool = False
    stop_str: str | tuple[str, ...] | list[str] | None = None
    top_k: int = 0
    seed: int | None = None
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0, 2)
        _check_number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise ValueError("top_p must be more than 0")
        _check_integer("max_gen_length", self.max_gen_length, 1, MAX_TOKENS)
        _check_integer("top_k", self.top_k, 0, MAX_TOKENS)
        _check_integer("min_tokens", self.min_tokens, 0, self.max_gen_length)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        object.__setattr__(self, "stop_str", _stops(self.stop_str))

    def to_wire(self) -> dict[str, Any]:
        """The settings as the server's API names them; those at the API's default are left out."""
        wire: dict[str, Any] = {"max_tokens": self.max_gen_length, "temperature": self.temperature}
        if self.top_p != 1:
            wire["top_p"] = self.top_p
        if self.top_k:
            wire["top_k"] = self.top_k
        if self.seed is not None:
            wire["seed"] = self.seed
        if self.ignore_tokenizer_eos:
            wire["ignore_eos"] = True
        if self.stop_str:
            wire["stop"] = list(self.stop_str)
        if self.min_tokens:
            wire["min_tokens"] = self.min_tokens
        return wire


class Input:
    """Annotates a parameter as an input: a text, or the variable that will hold one."""


class Output:
    """Annotates a parameter as an output; `P.Output` alone, or `P.Output(P.SamplingConfig(...))`.

    An output is made by the call. Pass a variable for it, by keyword, to choose which one.
    """

    def __init__(self, sampling_config: SamplingConfig | None = None) -> None:
        self.sampling_config = sampling_config


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")


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
