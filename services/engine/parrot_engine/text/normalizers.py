"""A tokenizer's normalizers, over a text that is still growing.

Each takes text and gives normalized text as soon as nothing that comes can change it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from parrot_engine.text.cuts import CutRules, Cutter, Replacer, Stage
from parrot_engine.text.patterns import BOUNDARY, CROSSED, Pattern

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

_CHAR_BY_CHAR: Final = ("Lowercase", "StripAccents", "Nmt", "ByteLevel")


class UnsupportedNormalizerError(Exception):
    """The normalizer may change text because of what comes much later; says which it is."""


class GrowingText(Protocol):
    """Text in, as it comes; text out, as soon as it is sure."""

    def push(self, text: str) -> str:
        """Takes what comes next; returns what is sure, possibly nothing."""

    def finish(self) -> str:
        """Whatever was held back."""


def understand(spec: Mapping[str, Any] | None) -> list[Callable[[], GrowingText]]:
    """The normalizer of a tokenizer.json as steps, each made anew for each text.

    Raises:
        UnsupportedNormalizerError, UnsupportedPatternError: it is not understood.
    """
    if spec is None:
        return []
    kind = spec["type"]
    if kind == "Sequence":
        return [step for part in spec["normalizers"] for step in understand(part)]
    normalizer = _build(spec)
    if kind in _CHAR_BY_CHAR:
        return [lambda: _CharByChar(normalizer)]
    if kind == "Prepend":
        return [lambda: _Prepend(normalizer)]
    if kind == "Strip":
        return [lambda: _Strip(left=spec["strip_left"], right=spec["strip_right"])]
    rules = CutRules(stages=[_stage(spec)], deciding=1)
    return [lambda: _Segmented(normalizer, rules)]


def pattern_of(spec: Mapping[str, str]) -> Pattern:
    """The expression in a tokenizer.json: `{"Regex": ...}` or `{"String": ...}`."""
    if "Regex" in spec:
        return Pattern(spec["Regex"])
    return Pattern("".join(f"\\x{{{ord(char):x}}}" for char in spec["String"]))


def _stage(spec: Mapping[str, Any]) -> Stage:
    kind = spec["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return _Composition()
    if kind == "Precompiled":
        return _Graphemes()
    if kind == "Replace":
        return Replacer(pattern_of(spec["pattern"]))
    raise UnsupportedNormalizerError(f"normalizer {kind}")


def _build(spec: Mapping[str, Any]) -> Normalizer:
    from tokenizers import Tokenizer

    model = {"type": "BPE", "vocab": {}, "merges": []}
    made = Tokenizer.from_str(
        json.dumps({"version": "1.0", "normalizer": spec, "model": model, "added_tokens": []})
    )
    normalizer: Normalizer | None = made.normalizer
    if normalizer is None:
        raise UnsupportedNormalizerError(f"normalizer {spec['type']}")
    return normalizer


class _CharByChar:
    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer

    def push(self, text: str) -> str:
        return self._normalizer.normalize_str(text)

    def finish(self) -> str:
        return ""


class _Segmented:
    """Cuts where what is on either side is normalized as if it stood alone."""

    def __init__(self, normalizer: Normalizer, rules: CutRules) -> None:
        self._normalizer = normalizer
        self._cutter = Cutter(rules)

    def push(self, text: str) -> str:
        return self._normalizer.normalize_str(self._cutter.push(text))

    def finish(self) -> str:
        return self._normalizer.normalize_str(self._cutter.finish())


class _Prepend:
    """Puts something in front of a text that is not empty."""

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._begun = False

    def push(self, text: str) -> str:
        if self._begun or not text:
            return text
        self._begun = True
        return self._normalizer.normalize_str(text)

    def finish(self) -> str:
        return ""


class _Strip:
    """Leaves out white space at the text's ends."""

    def __init__(self, *, left: bool, right: bool) -> None:
        self._left, self._right = left, right
        self._held: list[str] = []

    def push(self, text: str) -> str:
        # Python's white space has all of Unicode's and four control characters more: those wait too.
        end = len(text.rstrip())
        if not end:
            self._held.append(text)
            return ""
        released = self._strip("".join([*self._held, text[:end]]), right=False)
        self._held, self._left = [text[end:]], False
        return released

    def finish(self) -> str:
        return self._strip("".join(self._held), right=self._right)

    def _strip(self, text: str, *, right: bool) -> str:
        from tokenizers.normalizers import Strip

        return Strip(left=self._left, right=right).normalize_str(text) if self._left or right else text


class _Composition:
    """NFC, NFD, NFKC, NFKD (Unicode annex 15): marks are sorted and joined to the letter before them.

    A character that is no mark, and is joined to none before it, starts anew. Its neighbour must be
    known to our Unicode: normal forms of known characters never change.
    """

    anywhere: Final = 0
    splits: Final = True

    def step(self, state: int, char: str) -> tuple[int, int]:
        if char < "\x7f":
            return 1, BOUNDARY if state else CROSSED
        known = unicodedata.category(char) != "Cn"
        return int(known), BOUNDARY if state and known and _starts_anew(char) else CROSSED


@lru_cache(maxsize=65_536)
def _starts_anew(char: str) -> bool:
    firsts = {char, unicodedata.normalize("NFD", char)[0], unicodedata.normalize("NFKD", char)[0]}
    return all(not unicodedata.combining(first) and first not in _joined() for first in firsts)


@lru_cache(maxsize=1)
def _joined() -> frozenset[str]:
    """The characters that may be joined to one before them."""
    decompositions = map(unicodedata.decomposition, map(chr, range(0x110000)))
    pairs = (made.split() for made in decompositions if made and not made.startswith("<"))
    jamo = map(chr, range(0x1161, 0x1200))
    return frozenset(chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2) | frozenset(jamo)


class _Graphemes:
    """SentencePiece's table of replacements, applied to one grapheme cluster at a time.

    Between two characters that neither extend nor begin a cluster, a cluster ends (Unicode annex 29).
    """

    anywhere: Final = 0
    splits: Final = True

    def step(self, state: int, char: str) -> tuple[int, int]:
        alone = int(_is_cluster(char))
        return alone, BOUNDARY if state and alone else CROSSED


@lru_cache(maxsize=65_536)
def _is_cluster(char: str) -> bool:
    code = ord(char)
    if code < 0x7F:
        return code >= 0x20
    if 0x3041 <= code <= 0x30FA:
        return not 0x3099 <= code <= 0x309A
    if 0x3400 <= code <= 0x4DBF or 0x4E00 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3:
        return True
    flags = 0x1F1E6 <= code <= 0x1F1FF
    return not flags and unicodedata.category(char) in (
        "Lu",
        "Ll",
        "Nd",
        "Po",
        "Pd",
        "Ps",
        "Pe",
        "Sm",
        "So",
        "Zs",
    )
