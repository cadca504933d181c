"""What ends `parrot up` with one line that says why, and how to mend it."""

from __future__ import annotations


class UpError(Exception):
    """The stack can't be started, or can't go on."""
