"""Which text is text: every str but one with half a character in it."""

from __future__ import annotations

import re
from typing import Final

from parrot.errors import InvalidText

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_text(text: str, what: str) -> str:
    """`text` itself, when every character of it is one.

    Raises:
        InvalidText: it holds a lone surrogate.
        TypeError: it is not a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is half a character; give the pair, or leave it out",
            offset=error.start,
        ) from None
    return text


def check_id(given: str, what: str) -> str:
    """`given` itself, when it may be an id on the server.

    Raises:
        ValueError: it may not.
        TypeError: it is not a str.
    """
    if not _ID.fullmatch(check_text(given, what)):
        raise ValueError(f"{what} is {given!r}; it is 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
    return given
