"""Tells when something the bus told may not have been heard.

That is so after the connection was lost, and after a stream got another leader: what the one before
took, and did not tell any more, is in the stream and is told by nobody.
"""

from __future__ import annotations

from collections.abc import Callable


class Breaks:
    """The breaks of one connection.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._listeners: set[Callable[[], None]] = set()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, which does not wait, at each break."""
        self._listeners.add(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Calls it no more."""
        self._listeners.discard(listener)

    def happened(self) -> None:
        """Notes a break, and tells of it."""
        self.count += 1
        for listener in list(self._listeners):
            listener()
