"""Turns an output's bytes, as they come, into text that readers may see."""

from __future__ import annotations

import codecs


class TextStream:
    """Whole characters only, and nothing that may turn out to be part of a stop text.

    How the bytes are cut changes nothing in the whole text. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._hold_chars = max(map(len, stop), default=1) - 1
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._unchecked = 0

    def push(self, data: bytes, *, may_stop: bool = True) -> tuple[str, bool]:
        """Takes in `data`; returns the text released, and whether a stop text ended the output.

        Args:
            may_stop: False: a stop text that ends within `data` does not count.
        """
        self._held += self._decoder.decode(data)
        if not may_stop:
            self._unchecked = len(self._held)
        elif (at := self._find_stop()) is not None:
            released, self._held = self._held[:at], ""
            return released, True
        return self._release(len(self._held) - self._hold_chars), False

    def finish(self) -> str:
        """The text held back; the bytes of half a character are dropped."""
        return self._release(len(self._held))

    def _find_stop(self) -> int | None:
        """Where the stop text begins that is complete first; of several, the longest."""
        found = (
            (at + len(text), at)
            for text in self._stop
            if (at := self._held.find(text, max(0, self._unchecked - len(text) + 1))) >= 0
        )
        return min(found, default=(0, None))[1]

    def _release(self, chars: int) -> str:
        chars = max(0, chars)
        released, self._held = self._held[:chars], self._held[chars:]
        self._unchecked = max(0, self._unchecked - chars)
        return released
