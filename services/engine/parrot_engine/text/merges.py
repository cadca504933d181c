"""Where the merges of a byte-pair vocabulary can't join what is on two sides of a place.

Every token is a stretch of the text that some merge spells. Where no such stretch crosses a place, the
merges on either side never meet, and each side is encoded as if it stood alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

BYTE_PIECES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
MOST_OPEN: Final = 16
"""Pieces that may be under way at once before the walk gives the stretch up."""
_KNOWN_CHARS: Final = 65_536


class Merges:
    """What a byte-pair model's merges can spell."""

    def __init__(self, model: Mapping[str, Any], spell: Callable[[str], str]) -> None:
        """Reads the model of a tokenizer.json that `understands` accepts.

        Args:
            spell: what the model is given in the place of a character.
        """
        self._vocabulary: Mapping[str, int] = model["vocab"]
        self._spell = spell
        falls_back = bool(model.get("byte_fallback"))
        self._drops = model.get("unk_token") is None and not falls_back
        self._joins_unknown = bool(model.get("fuse_unk")) and not falls_back
        self.pieces: Final = sorted({"".join(split_merge(merge)) for merge in model["merges"]})
        self.longest: Final = max(map(len, self.pieces), default=0)
        self._pairs = {piece[i : i + 2] for piece in self.pieces for i in range(len(piece) - 1)}
        self._symbols: dict[str, str] = {}

    @staticmethod
    def understands(model: Mapping[str, Any]) -> bool:
        """Whether merges are all there is to the model: no affixes, no chance, no merged bytes."""
        if any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
            return False
        if not model.get("byte_fallback"):
            return True
        merged = {part for merge in model["merges"] for part in split_merge(merge)}
        return merged.isdisjoint(BYTE_PIECES) and all(piece in model["vocab"] for piece in BYTE_PIECES)

    def symbols(self, char: str) -> str:
        """What merges see of a character; nothing where the vocabulary has no sign for it."""
        made = self._symbols.get(char)
        if made is None:
            if len(self._symbols) >= _KNOWN_CHARS:
                self._symbols.clear()
            made = self._spell(char)
            if self._drops:
                made = "".join(symbol for symbol in made if symbol in self._vocabulary)
            self._symbols[char] = made
        return made

    def apart(self, left: str, right: str) -> bool:
        """Whether no token spans two neighbouring symbols, whatever is around them."""
        if left + right in self._pairs:
            return False
        return not self.melt(left, right)

    def melt(self, left: str, right: str) -> bool:
        """Whether two neighbouring symbols become one token because neither is known."""
        return self._joins_unknown and left not in self._vocabulary and right not in self._vocabulary


class MergeWalk:
    """Finds places in a long stretch that no token spans, by following every piece that may be there."""

    def __init__(self, merges: Merges, *, at_cut: bool) -> None:
        """`at_cut`: the stretch begins where nothing can be joined to what is before it."""
        self._merges = merges
        self._begin(0 if at_cut else merges.longest)

    def _begin(self, blind: int) -> None:
        self._blind = blind
        self._text, self._base, self._last = "", 0, ""
        self._open: list[int] = []
        self._ends: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._settled = self._furthest = 0

    def feed(self, symbols: str, place: int, *, may_cut: bool) -> int | None:
        """Takes the symbols of the character behind `place`; returns the last place found safe, if any."""
        end = self._base + len(self._text)
        if may_cut and symbols and end >= self._blind and not self._merges.melt(self._last, symbols[0]):
            self._places[end] = place
        for symbol in symbols:
            self._advance(symbol)
        if len(self._open) > MOST_OPEN:
            self._begin(self._merges.longest)
            return None
        return self._settle()

    def _advance(self, symbol: str) -> None:
        self._text += symbol
        self._last = symbol
        end = self._base + len(self._text)
        self._open = [start for start in (*self._open, end - 1) if self._goes_on(start, end)]

    def _goes_on(self, start: int, end: int) -> bool:
        """Whether some piece is longer than what is there from `start` on; notes a piece that ends here."""
        pieces, text = self._merges.pieces, self._text[start - self._base :]
        at = bisect_left(pieces, text)
        if at < len(pieces) and pieces[at] == text:
            self._ends[start] = end
            at += 1
        return at < len(pieces) and pieces[at].startswith(text)

    def _settle(self) -> int | None:
        found = None
        until = self._open[0] if self._open else self._base + len(self._text)
        while True:
            place = self._places.pop(self._settled, None)
            if place is not None and self._furthest <= self._settled:
                found = place
            if self._settled >= until:
                break
            self._furthest = max(self._furthest, self._ends.pop(self._settled, 0))
            self._settled += 1
        self._text, self._base = self._text[until - self._base :], until
        return found


def split_merge(merge: str | Iterable[str]) -> tuple[str, str]:
    """A merge's two sides, however the file writes them."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def spell_bytes(text: str) -> str:
    """A sign for each byte of UTF-8, as byte-level vocabularies write it (GPT-2)."""
    return "".join(_BYTE_SIGNS[byte] for byte in text.encode())


def _byte_signs() -> list[str]:
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in shown)
    moved = {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]


_BYTE_SIGNS: Final = _byte_signs()
