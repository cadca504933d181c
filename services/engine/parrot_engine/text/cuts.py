"""Cuts a growing text where both sides are handled as if each stood alone, whatever is still to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from parrot_engine.text.merges import Merges, MergeWalk
from parrot_engine.text.patterns import BOUNDARY, CLEAR, CROSSED, INSIDE, Pattern

LOOK_BACK_CHARS: Final = 512
"""Of a long text only the end is searched for its last safe place first."""
LONG_CHARS: Final = 24
"""Without a boundary for so long, places within a word are looked for."""


class Stage(Protocol):
    """One step of what is done to a text before its words are encoded; keeps no text."""

    @property
    def anywhere(self) -> int:
        """The state when the text so far is not known."""

    @property
    def splits(self) -> bool:
        """Whether there are places it splits at, whatever comes after."""

    def step(self, state: int, char: str) -> tuple[int, int]:
        """The state behind `char`, and what may cross the place before it. The first state is 0."""


class Splitter:
    """A stage that splits at the matches of an expression."""

    def __init__(self, pattern: Pattern, *, splits_everywhere: bool) -> None:
        """`splits_everywhere`: matches are pieces of their own, not joined to a neighbour."""
        self._pattern = pattern
        self._most = BOUNDARY if splits_everywhere else CLEAR
        self.splits: Final = splits_everywhere
        self.anywhere: Final = pattern.anywhere

    def step(self, state: int, char: str) -> tuple[int, int]:
        after, verdict = self._pattern.step(state, char)
        return after, min(verdict, self._most)


class Replacer:
    """A stage that puts something else in the place of each match."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self.splits: Final = True
        self.anywhere: Final = pattern.anywhere

    def step(self, state: int, char: str) -> tuple[int, int]:
        after, verdict = self._pattern.step(state, char)
        return after, BOUNDARY if verdict >= CLEAR else CROSSED


class Before:
    """A stage that depends on the character behind a place alone."""

    anywhere: Final = 0

    def __init__(self, chars: str, *, there: int, elsewhere: int) -> None:
        self._chars = frozenset(chars)
        self._there = there
        self._elsewhere = elsewhere
        self.splits: Final = BOUNDARY in (there, elsewhere)

    def step(self, state: int, char: str) -> tuple[int, int]:
        return 0, self._there if char in self._chars else self._elsewhere


@dataclass(frozen=True, slots=True)
class CutRules:
    """Where a text may be cut: where no stage is disturbed, and one splits or no merge joins.

    Attributes:
        deciding: how many of the stages split for good, the first ones.
        merges: None: words are never cut.
        led: words see a sign in front of the text that is not in it.
    """

    stages: Sequence[Stage]
    deciding: int
    merges: Merges | None = None
    led: bool = False


class Cutter:
    """Holds a growing text back behind its last safe place.

    Takes time in proportion to the text, however it comes. What is held is the end of the text, from
    the last safe place on: a word or two, but all of a stretch that may yet become one word.
    """

    def __init__(self, rules: CutRules) -> None:
        self._rules = rules
        self._scan = _Scan(rules, at=0, known=True)
        self._parts: list[str] = []
        self._start = 0

    def push(self, text: str) -> str:
        """Takes what comes next; returns what may go, possibly nothing."""
        place = self._find(text)
        self._parts.append(text)
        return self._release(place) if place is not None and place > self._start else ""

    def finish(self) -> str:
        """What was held back."""
        return "".join(self._parts)

    def _release(self, place: int) -> str:
        held = "".join(self._parts)
        released, rest = held[: place - self._start], held[place - self._start :]
        self._parts, self._start = [rest], place
        return released

    def _find(self, text: str) -> int | None:
        if len(text) > 2 * LOOK_BACK_CHARS:
            end = _Scan(self._rules, at=self._scan.at + len(text) - LOOK_BACK_CHARS, known=False)
            if (place := end.feed(text[-LOOK_BACK_CHARS:])) is not None:
                self._scan = end
                return place
        return self._scan.feed(text)


class _Scan:
    """Goes through a text once and finds the last safe place in it.

    Attributes:
        at: how many characters of the text are behind it.
    """

    def __init__(self, rules: CutRules, *, at: int, known: bool) -> None:
        """`known`: it begins with the text, not somewhere within."""
        self._stages, self._deciding = rules.stages, rules.deciding
        self._states = [0 if known else stage.anywhere for stage in self._stages]
        self._words = _Words(rules.merges, at_cut=known and not rules.led) if rules.merges else None
        self._begun = False
        self.at = at

    def feed(self, text: str) -> int | None:
        """Goes on with `text`; returns the last safe place found, in characters from the text's start."""
        found = None
        for char in text:
            verdict = self._judge(char) if self._begun else self._begin(char)
            place = self._words.feed(char, self.at, verdict) if self._words else None
            if verdict == BOUNDARY:
                place = self.at
            if place is not None:
                found = place
            self.at += 1
        return found

    def _begin(self, char: str) -> int:
        self._begun = True
        self._judge(char)
        return CROSSED

    def _judge(self, char: str) -> int:
        """BOUNDARY: cut before `char`. INSIDE: cut there if no merge joins. CROSSED: don't."""
        least, splits = INSIDE, False
        for index, stage in enumerate(self._stages):
            self._states[index], verdict = stage.step(self._states[index], char)
            least = min(least, verdict)
            splits = splits or (verdict == BOUNDARY and index < self._deciding)
        return BOUNDARY if splits and least else least


class _Words:
    """Finds places within words that no merge joins: two neighbours at once, others when a word is long."""

    def __init__(self, merges: Merges, *, at_cut: bool) -> None:
        self._merges = merges
        self._from_cut = at_cut
        self._last = ""
        self._waiting: list[tuple[str, int, bool]] = []
        self._walk: MergeWalk | None = None

    def feed(self, char: str, place: int, verdict: int) -> int | None:
        """Looks before `char`, which is at `place`, and in what waits before it."""
        symbols = self._merges.symbols(char)
        last, self._last = self._last, symbols[-1:] or self._last
        if verdict == BOUNDARY:
            return self._restart(symbols, place)
        if verdict == INSIDE and last and symbols and self._merges.apart(last, symbols[0]):
            return self._restart(symbols, place)
        return self._follow(symbols, place, may_cut=verdict == INSIDE)

    def _restart(self, symbols: str, place: int) -> int:
        self._walk = None
        self._from_cut = True
        self._waiting = [(symbols, place, False)]
        return place

    def _follow(self, symbols: str, place: int, *, may_cut: bool) -> int | None:
        if self._walk is not None:
            return self._walk.feed(symbols, place, may_cut=may_cut)
        self._waiting.append((symbols, place, may_cut))
        return self._begin_walk() if len(self._waiting) > LONG_CHARS else None

    def _begin_walk(self) -> int | None:
        waiting, self._waiting = self._waiting, []
        at_cut, self._from_cut = self._from_cut, False
        if not any(may_cut for _, _, may_cut in waiting):
            return None
        self._walk = MergeWalk(self._merges, at_cut=at_cut)
        found = [self._walk.feed(symbols, place, may_cut=may_cut) for symbols, place, may_cut in waiting]
        return max((place for place in found if place is not None), default=None)
