"""Draws an output's tokens from the simulated model, as its sampling says.

The likeliest token is drawn always: with a temperature, a seed makes other tokens the likely ones.
So `top_p`, `top_k` and `min_p` leave out nothing that could be drawn, but where they leave the
likeliest token alone, no seed counts.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from parrot_engine.backends.base import BackendError, TokenLogprobs, UnsupportedError
from parrot_engine.backends.sim.model import VOCABULARY, Writer, log_total, other_logit
from parrot_engine.sampling import Guide, Sampling
from parrot_engine.text.byte_tokens import EOS_ID

_NEVER: Final = float("-inf")
_GUIDED: Final = 2.0
"""What the choice that would be taken is likelier by than the others."""


class Sampler:
    """One output's tokens, one after the other.

    Raises:
        UnsupportedError: the guide is of a kind that takes a real grammar.
        BackendError: what is resumed fits no choice, or a biased token is none of the model's.
    """

    def __init__(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """`prompt` ends with what is resumed, if anything is."""
        if sampling.temperature > 0 and sampling.top_k != 1 and sampling.min_p < 1:
            seed += 1 + (sampling.seed or 0)
        _check_tokens(sampling)
        start = max(0, len(prompt) - len(sampling.resumed.encode()))
        self._sampling = sampling
        self._writer = Writer(prompt, start, seed)
        self._guided = _Choice(prompt[:start], sampling.guide, sampling.resumed) if sampling.guide else None
        self._ends = frozenset((EOS_ID, *sampling.stop_token_ids))
        self._prompt = frozenset(prompt) if sampling.repetition_penalty != 1 else frozenset()
        self._counts: Counter[int] = Counter()
        self._generated = 0
        self._is_plain = self._guided is None and not (
            sampling.logit_bias
            or sampling.stop_token_ids
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1
        )

    def draw(self) -> tuple[int, TokenLogprobs | None]:
        """The next token, and its logarithms where they are asked for."""
        token = self._writer.best()
        if not self._is_plain or token == EOS_ID:
            token = self._choose(self._writer.logits())
        logprobs = None
        if self._sampling.logprobs is not None:
            logprobs = token_logprobs(self._writer.logits(), token, self._sampling.logprobs)
        self._take(token)
        return token, logprobs

    def ends(self, token: int) -> bool:
        """Whether a token that was drawn ends the output, and is not in its text."""
        return token in self._ends

    def _take(self, token: int) -> None:
        self._generated += 1
        self._writer.push(token)
        if not self._is_plain:
            self._counts[token] += 1
        if self._guided is not None and not self.ends(token):
            self._guided.take(token)

    def _choose(self, logits: dict[int, float]) -> int:
        if self._guided is not None:
            logits = self._guided.apply(logits)
            if logits.keys() == {EOS_ID}:
                return EOS_ID
        else:
            logits = {token: other_logit() for token in range(VOCABULARY)} | logits
        scores = {token: self._score(token, logit) for token, logit in logits.items()}
        return max(scores, key=lambda token: (scores[token], -token))

    def _score(self, token: int, logit: float) -> float:
        """A token's logit under everything that is asked for."""
        sampling = self._sampling
        if token in self._ends and not self._may_end(token):
            return _NEVER
        count = self._counts[token]
        if count or token in self._prompt:
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        if count:
            logit -= sampling.presence_penalty + sampling.frequency_penalty * count
        return logit + sampling.logit_bias.get(token, 0.0)

    def _may_end(self, token: int) -> bool:
        if self._generated < self._sampling.min_tokens:
            return False
        return not self._sampling.ignore_eos or token in self._sampling.stop_token_ids


class _Choice:
    """Keeps an output to one of several texts."""

    def __init__(self, prompt: Sequence[int], guide: Guide, resumed: str) -> None:
        if guide.kind != "choice":
            raise UnsupportedError(
                f"the simulated engine can't keep an output to a guide of kind {guide.kind}; it can choose "
                "(kind choice)"
            )
        self._choices = [choice.encode() for choice in guide.choices if choice.startswith(resumed)]
        if not self._choices:
            raise BackendError(
                "the output's first part, which was streamed before, is of no choice of its guide"
            )
        digest = hashlib.blake2b(array("I", prompt).tobytes(), digest_size=8).digest()
        self._likeliest = guide.choices[int.from_bytes(digest) % len(guide.choices)].encode()
        self._written = len(resumed.encode())

    def apply(self, logits: Mapping[int, float]) -> dict[int, float]:
        """The logits of the tokens that go on with a choice, or end one."""
        allowed: dict[int, float] = {}
        for choice in self._choices:
            token = EOS_ID if len(choice) == self._written else choice[self._written]
            likelier = _GUIDED if choice == self._likeliest else 0.0
            logit = logits.get(token, other_logit()) + likelier
            allowed[token] = max(logit, allowed.get(token, _NEVER))
        return allowed

    def take(self, token: int) -> None:
        """Leaves out the choices that do not go on with `token`."""
        at = self._written
        self._choices = [choice for choice in self._choices if choice[at : at + 1] == bytes((token,))]
        self._written += 1


def _check_tokens(sampling: Sampling) -> None:
    for token in sampling.logit_bias:
        if token >= VOCABULARY:
            raise BackendError(f"logit_bias names token {token}; the model's last is {VOCABULARY - 1}")


def token_logprobs(logits: Mapping[int, float], token: int, count: int) -> TokenLogprobs:
    """A token's logarithm of probability, and those of the `count` likeliest tokens."""
    total = log_total(logits)
    likeliest = sorted(logits.items(), key=lambda item: (-item[1], item[0]))[:count]
    return TokenLogprobs(
        token,
        logits.get(token, other_logit()) - total,
        tuple((other, logit - total) for other, logit in likeliest),
    )


def prompt_logprobs(prompt: Sequence[int], count: int, seed: int) -> tuple[TokenLogprobs, ...]:
    """One for each token of a prompt but the first."""
    writer = Writer(prompt[:1], 1, seed)
    found = []
    for token in prompt[1:]:
        found.append(token_logprobs(writer.logits(), token, count))
        writer.push(token)
    return tuple(found)
