"""What a regular expression may match across a place in a text, whatever comes after it.

An expression becomes a position automaton (Glushkov, 1961): its positions are the character classes
in it, and a state is the set of positions that may have taken the last character, over all places a
match may have begun at. A look-ahead is a branch that reads and leads nowhere: what it reads counts
as what a match takes. All sets err on the large side, so that "nothing crosses here" is sure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

CROSSED: Final = 0
"""A match may cross the place, or depend on what is behind it."""
INSIDE: Final = 1
"""A match may cross; cut here, it becomes two matches and no other match changes."""
CLEAR: Final = 2
"""No match crosses; the characters on both sides may be left unmatched, as one stretch."""
BOUNDARY: Final = 3
"""No match crosses, and one ends or begins here."""

MOST_COPIES: Final = 64
_WHITE: Final = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
_ESCAPED: Final = {"r": "\r", "n": "\n", "t": "\t", "v": "\v", "f": "\f"}
_CATEGORIES: Final = frozenset("LMNPSZ") | frozenset(
    kind + part
    for kind, parts in {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp"}.items()
    for part in parts
)
_KNOWN_CHARS: Final = 65_536
"""Characters whose positions are remembered."""

Chars = Callable[[str], bool]


class UnsupportedPatternError(Exception):
    """The expression uses what is not understood here; says what."""


class Pattern:
    """A regular expression, read one character at a time. Keeps no text: the state is the caller's."""

    def __init__(self, source: str) -> None:
        """Reads Oniguruma's syntax.

        Raises:
            UnsupportedPatternError: it looks behind, is lazy, matches nothing, or is not understood.
        """
        self._positions = _Positions()
        part = self._positions.add(_Parser(source).parse())
        if part.nullable:
            raise UnsupportedPatternError(f"{source!r} matches the empty text")
        self._first, self._last = part.first, part.last
        self._unknown = 1 << len(self._positions.chars)
        guarded = bool(part.first & self._positions.looking)
        self._alone = 0 if guarded else self._bits(part.first & part.last, self._is_free)
        self._loops = self._bits(self._alone, lambda i: bool(self._positions.follow[i] >> i & 1))
        self._taking: dict[str, int] = {}
        self._steps: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def anywhere(self) -> int:
        """The state when the text so far is not known."""
        return (self._unknown << 1) - 1

    def step(self, state: int, char: str) -> tuple[int, int]:
        """The state behind `char`, and what may cross the place before it. The first state is 0."""
        taking = self._taking.get(char)
        key = state, self._take(char) if taking is None else taking
        made = self._steps.get(key)
        if made is None:
            made = self._steps[key] = self._make_step(*key)
        return made

    def _make_step(self, state: int, taking: int) -> tuple[int, int]:
        reached = 0
        for position, follow in enumerate(self._positions.follow):
            if state >> position & 1:
                reached |= follow
        crossing = reached & taking
        after = (reached | self._first) & taking | taking & self._unknown
        return after, self._judge(state, crossing, taking)

    def _judge(self, state: int, crossing: int, taking: int) -> int:
        if (state | taking) & self._unknown:
            return CROSSED
        if not crossing:
            return BOUNDARY if (state | taking) & self._alone else CLEAR
        # One position alone, that may begin, go on and end a match: a match that begins in its middle
        # takes what the whole match takes from there.
        if state == crossing == self._first & taking and crossing & self._loops:
            return INSIDE if crossing.bit_count() == 1 else CROSSED
        return CROSSED

    def _take(self, char: str) -> int:
        """The positions that take `char`; with it a bit for a character of a later Unicode than ours."""
        if len(self._taking) >= _KNOWN_CHARS:
            self._taking.clear()
        taking = self.anywhere
        if unicodedata.category(char) != "Cn":
            taking = sum(1 << i for i, chars in enumerate(self._positions.chars) if chars(char))
        self._taking[char] = taking
        return taking

    def _is_free(self, position: int) -> bool:
        return not (self._positions.follow[position] | 1 << position) & self._positions.looking

    def _bits(self, among: int, holds: Callable[[int], bool]) -> int:
        every = range(len(self._positions.chars))
        return sum(1 << i for i in every if among >> i & 1 and holds(i))


@dataclass(frozen=True, slots=True)
class _One:
    chars: Chars


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Look:
    part: _Node


_Node = _One | _Row | _Either | _Repeat | _Look


@dataclass(frozen=True, slots=True)
class _Part:
    """Sets of positions, as bits: those that may come first and last in a part of the expression."""

    nullable: bool
    first: int
    last: int


_NOTHING: Final = _Part(nullable=True, first=0, last=0)


class _Positions:
    """The automaton: for each position its characters and the positions that may follow."""

    def __init__(self) -> None:
        self.chars: list[Chars] = []
        self.follow: list[int] = []
        self.looking = 0

    def add(self, node: _Node) -> _Part:
        match node:
            case _One(chars):
                return self._add_position(chars)
            case _Row(parts):
                return self._join(map(self.add, parts))
            case _Either(parts):
                return _either([self.add(part) for part in parts])
            case _Repeat():
                return self._repeat(node)
            case _Look(part):
                before = len(self.chars)
                first = self.add(part).first
                self.looking |= (1 << len(self.chars)) - (1 << before)
                return _Part(nullable=True, first=first, last=0)

    def _add_position(self, chars: Chars) -> _Part:
        bit = 1 << len(self.chars)
        self.chars.append(chars)
        self.follow.append(0)
        return _Part(nullable=False, first=bit, last=bit)

    def _join(self, parts: Iterable[_Part]) -> _Part:
        made = _NOTHING
        for part in parts:
            self._lead(made.last, part.first)
            first = made.first | (part.first if made.nullable else 0)
            last = part.last | (made.last if part.nullable else 0)
            made = _Part(made.nullable and part.nullable, first, last)
        return made

    def _repeat(self, node: _Repeat) -> _Part:
        copies = max(1, node.least) if node.most is None else node.most
        if copies > MOST_COPIES:
            raise UnsupportedPatternError(f"more than {MOST_COPIES} repetitions")
        parts = [self.add(node.part) for _ in range(copies)]
        if node.most is None and parts:
            self._lead(parts[-1].last, parts[-1].first)
        optional = (
            _Part(part.nullable or i >= node.least, part.first, part.last) for i, part in enumerate(parts)
        )
        return self._join(optional)

    def _lead(self, last: int, first: int) -> None:
        for position in range(len(self.follow)):
            if last >> position & 1:
                self.follow[position] |= first


def _either(parts: list[_Part]) -> _Part:
    first = last = 0
    for part in parts:
        first, last = first | part.first, last | part.last
    return _Part(any(part.nullable for part in parts), first, last)


class _Parser:
    """Reads the part of Oniguruma's syntax that tokenizers use."""

    _PIECE = re.compile(
        r"\\[pP]\{\^?\w+\}|\\x\{[0-9a-fA-F]+\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.S
    )
    _COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
    _GROUP = re.compile(r"\(\?(?:([i]*)(?:-[i]*)?([:)])|([=!]))")

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._caseless = False

    def parse(self) -> _Node:
        node = self._either()
        if self._at < len(self._source):
            raise self._refuse("an unmatched parenthesis")
        return node

    def _either(self) -> _Node:
        rows = [self._row()]
        while self._accept("|"):
            rows.append(self._row())
        return rows[0] if len(rows) == 1 else _Either(tuple(rows))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Row(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        while (bounds := self._bounds()) is not None:
            node = _Repeat(node, *bounds)
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, least, most in (("?", 0, 1), ("*", 0, None), ("+", 1, None)):
            if self._accept(sign):
                self._accept("+")  # possessive: takes fewer ways, none that is new
                self._refuse_lazy()
                return least, most
        if (found := self._COUNT.match(self._source, self._at)) and found[0] not in ("{}", "{,}"):
            self._at = found.end()
            self._refuse_lazy()
            least = int(found[1] or 0)
            most = int(found[3]) if found[3] else (None if found[2] else least)
            if self._source.startswith("+", self._at) and most == 1:
                raise self._refuse("a repetition that engines read in two ways")
            return least, most
        return None

    def _refuse_lazy(self) -> None:
        if self._source.startswith("?", self._at):
            raise self._refuse("a lazy repetition")

    def _atom(self) -> _Node:
        if self._source[self._at] == "(":
            return self._group()
        if self._accept("["):
            return _One(self._set())
        if self._accept("."):
            return _One(lambda char: char != "\n")
        if self._accept("$"):
            return _Look(_One(lambda char: True))
        if self._source[self._at] in "^*+?{":
            raise self._refuse("an anchor, or a repetition of nothing")
        return _One(self._in_case(self._class()))

    def _group(self) -> _Node:
        start, outer = self._at, self._caseless
        found = self._GROUP.match(self._source, self._at)
        if found is None and self._source.startswith("(?", self._at):
            raise self._refuse("a group of an unknown kind")
        if found is not None and (found[2] == ")" or "-" in found[0]):
            raise self._refuse("a switch of options")
        self._at = found.end() if found else self._at + 1
        self._caseless = outer or bool(found and found[1])
        node = self._either()
        if not self._accept(")"):
            raise self._refuse("an unmatched parenthesis")
        if self._caseless:
            self._refuse_long_folds(self._source[start : self._at])
        self._caseless = outer
        return _Look(node) if found and found[3] else node

    def _refuse_long_folds(self, group: str) -> None:
        _, long_folds = _folds()
        if any(fold in group.casefold() for fold in long_folds):
            raise self._refuse("letters that are one letter in another case")

    def _set(self) -> Chars:
        negated, parts = self._accept("^"), []
        if negated and self._caseless:
            raise self._refuse("the opposite of a set of letters in any case")
        while not self._accept("]"):
            if self._source.startswith(("[", "&&"), self._at) or self._at >= len(self._source):
                raise self._refuse("a set within a set")
            parts.append(self._range())
        members = tuple(parts)
        if negated:
            return lambda char: not any(chars(char) for chars in members)
        return self._in_case(lambda char: any(chars(char) for chars in members))

    def _range(self) -> Chars:
        low = self._next_piece()
        if not self._source.startswith("-", self._at) or self._source.startswith("-]", self._at):
            return self._meaning(low)
        self._at += 1
        ends = self._literal(low), self._literal(self._next_piece())
        return lambda char: ends[0] <= char <= ends[1]

    def _class(self) -> Chars:
        return self._meaning(self._next_piece())

    def _next_piece(self) -> str:
        found = self._PIECE.match(self._source, self._at)
        if found is None:
            raise self._refuse("an unfinished expression")
        self._at = found.end()
        return found[0]

    def _meaning(self, piece: str) -> Chars:
        if piece.startswith((r"\p", r"\P")):
            name = piece[3:-1].removeprefix("^")
            if name not in _CATEGORIES:
                raise self._refuse(f"the property {name}")
            return _category(name, negated=(piece[1] == "P") != (piece[3] == "^"))
        if piece in (r"\s", r"\S"):
            wanted = piece == r"\s"
            return lambda char: (char in _WHITE) == wanted
        if piece in (r"\d", r"\D"):
            return _category("Nd", negated=piece == r"\D")
        literal = self._literal(piece)
        return lambda char: char == literal

    def _literal(self, piece: str) -> str:
        if not piece.startswith("\\"):
            return piece
        body = piece[1:]
        if body in _ESCAPED:
            return _ESCAPED[body]
        if len(body) > 1 and body[0] in "xu":
            return chr(int(body[1:].strip("{}"), 16))
        if body.isalnum() or not body:
            raise self._refuse(f"the escape {piece}")
        return body

    def _in_case(self, chars: Chars) -> Chars:
        if not self._caseless:
            return chars
        folds, _ = _folds()
        return lambda char: any(map(chars, folds.get(char.casefold(), char)))

    def _accept(self, sign: str) -> bool:
        found = self._source.startswith(sign, self._at)
        self._at += len(sign) * found
        return found

    def _refuse(self, what: str) -> UnsupportedPatternError:
        return UnsupportedPatternError(f"{self._source!r} has {what} near {self._at}")


def _category(name: str, *, negated: bool) -> Chars:
    return lambda char: unicodedata.category(char).startswith(name) != negated


@lru_cache(maxsize=1)
def _folds() -> tuple[dict[str, str], frozenset[str]]:
    """The characters that are the same in any case, by their common form; forms of several letters."""
    same: dict[str, str] = {}
    for char in map(chr, range(0x10000)):
        fold = char.casefold()
        same[fold] = same.get(fold, "") + char
    return same, frozenset(fold for fold in same if len(fold) > 1)
