"""What the simulated model writes. Nothing here knows the time, nor what else runs.

As in a real model, the next token follows from all tokens before it: an output that is broken off
and gone on with, or that is made in two parts, reads as if it had been made in one.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from parrot_engine.text.byte_tokens import CONTROL, EOS_ID

_TEXT: Final = (
    "the a of and to in is that it for on with as was at by from are this be an or which one all there "
    "harbour parrot lighthouse river garden letter window morning evening winter council market bridge "
    "engine ledger island captain teacher weather question answer story house street "
    "opens closes carries finds remembers writes describes follows explains keeps begins returns "
    "small old bright quiet early narrow distant careful ordinary green "
    "café naïve façade Zürich smörgås 港 灯台 мост αυγή 🦜 “quoted” … "
)
WORDS: Final = tuple(word.encode() for word in _TEXT.split())
"""Words of one to four bytes a character, so that offsets in bytes and in characters differ."""

VOCABULARY: Final = 256 + len(CONTROL)
SHORTEST_WORDS: Final = 12
LONGEST_WORDS: Final = 60
_SENTENCE_WORDS: Final = 8
_FAR: Final = max(map(len, WORDS)) + 2
"""Tokens without a break that show that the word they belong to is none of ours."""
_SPACE: Final = ord(" ")
_PRINTABLE: Final = 95
_BREAKS: Final = frozenset((*b" \n", *CONTROL.values()))
"""What a word begins behind."""

LIKELY: Final = 24
"""Tokens that are likelier than all others, which are equally so."""
_FIRST, _SECOND, _LIKELY, _STEP, _OTHER = 9.0, 5.0, 3.0, 0.1, -4.0
"""Logits: of what is written, of what would be in its place, of the likely tokens, and of all others."""


class Writer:
    """The model over one sequence of tokens, which grows by `push`."""

    def __init__(self, tokens: Sequence[int], output_start: int, seed: int) -> None:
        """`output_start`: how many of `tokens` are the prompt; an output's length follows from those."""
        data = array("I", tokens)
        self._digester = hashlib.blake2b(digest_size=16, key=(seed % (1 << 64)).to_bytes(8, "big"))
        self._words_wanted = _draw_length(data[:output_start], seed)
        self._words = sum(token in _BREAKS for token in data[output_start:])
        start = _last_word(data)
        self._digester.update(data[:start].tobytes())
        self._begun = data[start:]
        self._is_ours = False
        self._draw_word()

    def best(self) -> int:
        """The likeliest next token; the token that ends the text where the text wants to end."""
        begun = len(self._begun)
        if self._is_ours and begun < len(self._word):
            return self._word[begun]
        return EOS_ID if self._wants_end() else _SPACE

    def push(self, token: int) -> None:
        """Goes on behind `token`."""
        begun = len(self._begun)
        self._begun.append(token)
        self._is_ours = self._is_ours and begun < len(self._word) and token == self._word[begun]
        if token in _BREAKS:
            self._words += 1
            self._pass(begun + 1)
        elif begun == _FAR:
            self._pass(1)

    def _pass(self, count: int) -> None:
        """Takes the first tokens of what is begun for said."""
        self._digester.update(self._begun[:count].tobytes())
        self._begun = self._begun[count:]
        self._draw_word()

    def _draw_word(self) -> None:
        self._digest = self._digester.digest()
        number = int.from_bytes(self._digest[:8])
        end = b"." if number >> 32 & 0xFF < 256 // _SENTENCE_WORDS else b""
        self._word = WORDS[number % len(WORDS)] + end
        self._is_ours = list(self._begun) == list(self._word[: len(self._begun)])

    def _wants_end(self) -> bool:
        return self._words >= self._words_wanted and self._is_ours and self._word.endswith(b".")

    def logits(self) -> dict[int, float]:
        """Those of the tokens that are not all alike; `other_logit` is everyone else's."""
        best = self.best()
        logits = {best: _FIRST}
        logits.setdefault(_SPACE, _SECOND)
        for token in self._likely():
            logits.setdefault(token, _LIKELY - _STEP * len(logits))
        return logits

    def _likely(self) -> Iterator[int]:
        """Printable ASCII, so that what is written instead is text too."""
        drawn = hashlib.blake2b(self._begun.tobytes(), digest_size=2, key=self._digest).digest()
        stride = 1 + drawn[1] % 4
        return (_SPACE + (drawn[0] + stride * place) % _PRINTABLE for place in range(LIKELY))


def other_logit() -> float:
    """The logit of every token that `Writer.logits` does not name."""
    return _OTHER


def log_total(logits: Mapping[int, float]) -> float:
    """The logarithm by which logits become logarithms of probabilities."""
    others = (VOCABULARY - len(logits)) * math.exp(_OTHER)
    return math.log(math.fsum((*map(math.exp, logits.values()), others)))


def _last_word(tokens: array[int]) -> int:
    """Where the last word begins, or `_FAR` before the end when it is longer than any of ours."""
    first = max(0, len(tokens) - _FAR)
    return next((at + 1 for at in range(len(tokens) - 1, first - 1, -1) if tokens[at] in _BREAKS), first)


def _draw_length(prompt: array[int], seed: int) -> int:
    digest = hashlib.blake2b(prompt.tobytes(), digest_size=8, key=b"%d" % seed).digest()
    return SHORTEST_WORDS + int.from_bytes(digest) % (LONGEST_WORDS - SHORTEST_WORDS + 1)
