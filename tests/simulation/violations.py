"""Promises that were broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken; its first word names which."""

    @property
    def promise(self) -> str:
        """Which."""
        return str(self).split(":", 1)[0]


def promise(kept: bool, which: str, why: str) -> None:
    """Raises when a promise was broken.

    Raises:
        Violation: it was.
    """
    if not kept:
        raise Violation(f"{which}: {why}")
