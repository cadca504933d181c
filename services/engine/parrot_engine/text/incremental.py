"""Encodes a text that is still growing, into the tokens that the whole text has.

The law: whatever the text and however it is cut, the tokens of all pushes and of `finish`, one after
the other, are those of the whole text. A token is released when no later text can change it. Where
that is, follows from the tokenizer's own rules, read from its file; a rule that is not understood
makes the encoder wait for the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from parrot_engine.text.cuts import CutRules, Cutter
from parrot_engine.text.normalizers import GrowingText

Encode = Callable[[str], list[int]]


class IncrementalEncoder(ABC):
    """Encodes one text, as it comes."""

    waits_for_end: str = ""
    """Why nothing is released before the end; empty: tokens are released as they become sure."""

    @abstractmethod
    def push(self, text: str) -> list[int]:
        """Takes the text that comes next; returns the tokens that nothing later can change."""

    @abstractmethod
    def finish(self) -> list[int]:
        """The text has ended; returns the rest of its tokens. Nothing may be pushed after it."""


class WaitingEncoder(IncrementalEncoder):
    """Encodes all at the end."""

    def __init__(self, encode: Encode, why: str) -> None:
        self._encode = encode
        self.waits_for_end = why
        self._parts: list[str] = []

    def push(self, text: str) -> list[int]:
        self._parts.append(text)
        return []

    def finish(self) -> list[int]:
        return self._encode("".join(self._parts))


class CharEncoder(IncrementalEncoder):
    """For a tokenizer whose tokens never span characters."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def push(self, text: str) -> list[int]:
        return self._encode(text)

    def finish(self) -> list[int]:
        return []


class CuttingEncoder(IncrementalEncoder):
    """Normalizes, cuts at safe places and encodes what is in between."""

    def __init__(self, steps: Sequence[GrowingText], rules: CutRules, first: Encode, later: Encode) -> None:
        """`first` encodes what a text begins with, `later` what follows."""
        self._steps = steps
        self._cutter = Cutter(rules)
        self._encode = first
        self._later = later

    def push(self, text: str) -> list[int]:
        for step in self._steps:
            text = step.push(text)
        return self._encode_next(self._cutter.push(text))

    def finish(self) -> list[int]:
        rest = ""
        for step in self._steps:
            rest = step.push(rest) + step.finish()
        released = self._encode_next(self._cutter.push(rest))
        return released + self._encode(self._cutter.finish())

    def _encode_next(self, text: str) -> list[int]:
        if not text:
            return []
        encode, self._encode = self._encode, self._later
        return encode(text)
