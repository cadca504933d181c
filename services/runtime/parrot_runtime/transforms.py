"""Declarative, bounded transforms of a value, applied where the value is made or used.

Each maps a whole text to a whole text in linear time. An output with transforms is not streamed:
its readers get the transformed value at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final


def _first_line(text: str) -> str:
    """The first line that is not blank, without its line end; empty when all are blank."""
    return next((line for line in text.splitlines() if line.strip()), "")


TRANSFORMS: Final[dict[str, Callable[[str], str]]] = {
    "strip": str.strip,
    "first_line": _first_line,
}


def apply(text: str, names: Iterable[str]) -> str:
    """`text` after each named transform, in order.

    Raises:
        KeyError: a name is not in `TRANSFORMS`.
    """
    for name in names:
        text = TRANSFORMS[name](text)
    return text
