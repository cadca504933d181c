"""Which text is text.

One rule for templates, values, stop texts and generated text: any sequence of Unicode scalar
values, U+0000 included, kept exactly. A lone surrogate is not a scalar value, has no UTF-8, and
is refused at the door with its field and offset. Names, labels and ids are for people and logs:
they hold no control characters.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

_CONTROL: Final = {"Cc", "Cs", "Zl", "Zp"}


def check_text(text: str, field: str, *, limit_bytes: int | None = None) -> str:
    """`text` itself, when it is text and at most `limit_bytes` of UTF-8.

    Raises:
        Fault: `invalid_text` for a lone surrogate, `too_large` beyond the limit.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Fault(
            errors.INVALID_TEXT,
            f"{field} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which is half a character; send the pair, or leave it out",
            field=field,
        ) from None
    if limit_bytes is not None and size > limit_bytes:
        raise too_large(field, size, limit_bytes)
    return text


def check_name(text: str, field: str) -> str:
    """`text` itself, when it may be a name or label.

    Raises:
        Fault: `invalid_text` for a control character, `too_large` for more than `NAME_CHARS`.
    """
    check_text(text, field)
    if len(text) > limits.NAME_CHARS:
        raise too_large(field, len(text), limits.NAME_CHARS, unit="characters")
    for offset, char in enumerate(text):
        if unicodedata.category(char) in _CONTROL:
            raise Fault(
                errors.INVALID_TEXT,
                f"{field} holds the control character U+{ord(char):04X} at character {offset}; "
                "names and labels are printable text",
                field=field,
            )
    return text


def too_large(field: str, size: int, limit: int, unit: str = "bytes") -> Fault:
    """The refusal of something that exceeds a limit."""
    return Fault(
        errors.TOO_LARGE,
        f"{field} is {size:,} {unit}; the limit is {limit:,} {unit}",
        field=field,
    )
