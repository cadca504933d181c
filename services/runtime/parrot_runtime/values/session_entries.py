"""The newest messages of a session's log, as far as they are kept. Entries are numbered from 0."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from parrot_runtime.values.session_fold import Added, News

ENTRY_BYTES: Final = 200
"""What a message, or a change in it, costs beside its text."""


class LaggingError(Exception):
    """What the reader is to get next is not kept any more."""


@dataclass(slots=True)
class Entry:
    """One message: its sequence, and when the stream took it (Unix seconds).

    Attributes:
        news: what is new in it.
        parts: what its readers get; None: nobody has read it yet.
    """

    sequence: int
    at_s: float
    news: Sequence[News]
    parts: list[bytes] | None = None

    @property
    def size_bytes(self) -> int:
        """About what it holds in memory."""
        if self.parts is not None:
            return ENTRY_BYTES + sum(map(len, self.parts))
        return ENTRY_BYTES + sum(
            len(one.text) if isinstance(one, Added) else ENTRY_BYTES for one in self.news
        )


class Entries:
    """So many bytes of them, the newest.

    Attributes:
        first: the number of the first that is kept.
    """

    def __init__(self, kept_bytes: int) -> None:
        self.first = 0
        self._kept_bytes = kept_bytes
        self._kept: deque[Entry] = deque()
        self._size = 0

    @property
    def end(self) -> int:
        """The number the next entry gets."""
        return self.first + len(self._kept)

    def add(self, entry: Entry) -> None:
        """Keeps the newest; the oldest may go."""
        self._kept.append(entry)
        self._resize(entry.size_bytes)

    def get(self, number: int) -> Entry | None:
        """The entry of that number; None: it is not there yet.

        Raises:
            LaggingError: it is not kept any more.
        """
        if number < self.first:
            raise LaggingError
        return self._kept[number - self.first] if number < self.end else None

    def number_of(self, sequence: int) -> int:
        """The number of the first that is kept and not before a sequence; `end`: there is none."""
        return self.first + bisect_left(self._kept, sequence, key=_sequence_of)

    def render(self, entry: Entry, parts: list[bytes]) -> None:
        """Keeps what an entry's readers get in place of its news."""
        before = entry.size_bytes
        entry.parts, entry.news = parts, ()
        if self._kept and entry.sequence >= self._kept[0].sequence:
            self._resize(entry.size_bytes - before)

    def free(self, number: int) -> None:
        """Keeps nothing before an entry."""
        while self._kept and self.first < number:
            self._drop()

    def _resize(self, by: int) -> None:
        self._size += by
        while self._size > self._kept_bytes and len(self._kept) > 1:
            self._drop()

    def _drop(self) -> None:
        self._size -= self._kept.popleft().size_bytes
        self.first += 1


def _sequence_of(entry: Entry) -> int:
    return entry.sequence
