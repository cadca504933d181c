"""What happened in a run, to be read when it went wrong, and hashed to see that it was the same."""

from __future__ import annotations

from hashlib import blake2b

from tests.simulation.kernel import START_MS, Clock

Note = tuple[int, str, tuple[object, ...]]


class Record:
    """Notes in the order of what happened."""

    def __init__(self, clock: Clock, *, keep: bool) -> None:
        """`keep` False keeps none: a run is a fifth faster that nobody looks at."""
        self._clock = clock
        self._keep = keep
        self.notes: list[Note] = []

    def note(self, who: str, *what: object) -> None:
        """Something happened."""
        if self._keep:
            self.notes.append((self._clock.now_ms - START_MS, who, what))

    def lines(self) -> list[str]:
        """All notes, for people."""
        return [f"{at_ms:>9} ms  {who:<10} {' '.join(map(_text, what))}" for at_ms, who, what in self.notes]

    def digest(self) -> str:
        """The same for the same notes."""
        return blake2b("\n".join(self.lines()).encode(), digest_size=16).hexdigest()


def _text(what: object) -> str:
    return what if isinstance(what, str) else repr(what)
