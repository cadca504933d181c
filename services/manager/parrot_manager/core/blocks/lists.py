"""Texts that are lists, and lists that become a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from parrot_manager.core.blocks.definitions import ListForm, Listing
from parrot_runtime import limits
from parrot_runtime.transforms import NotApplicableError
from parrot_runtime.transforms.json_values import parse_value, shown

_LINE: Final = re.compile(r"[^\r\n]+")


def split(text: str, listing: Listing, at_most: int) -> list[str]:
    """The items of a list; one more than `at_most` where there are more.

    Raises:
        NotApplicableError: the text is no list of this form, or holds an item that is no text.
    """
    if listing.form is ListForm.JSON_ARRAY:
        return _json_items(text, at_most + 1)
    lines = listing.form is ListForm.LINES
    parts = (line[0] for line in _LINE.finditer(text)) if lines else _parts(text, listing.separator)
    return list(islice(filter(None, map(str.strip, parts)), at_most + 1))


def join(texts: Sequence[str], joined_by: str | None) -> str:
    """The texts one after another, or a JSON array of them.

    Raises:
        NotApplicableError: the whole would exceed a value's size.
    """
    if joined_by is None:
        return _bounded(json.dumps(texts, ensure_ascii=False, separators=(",", ":")))
    # Before it is made: few items may stand between very many separators.
    if len(joined_by) * (len(texts) - 1) > limits.VALUE_BYTES:
        raise _too_large()
    return _bounded(joined_by.join(texts))


def _json_items(text: str, count: int) -> list[str]:
    value: Any = parse_value(text)
    if not isinstance(value, list):
        raise NotApplicableError("the text is no JSON array")
    return [_item(place, found) for place, found in enumerate(value[:count])]


def _item(place: int, value: Any) -> str:
    text = shown(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotApplicableError(f"item {place} holds half a character (a lone surrogate)") from None
    return text


def _parts(text: str, separator: str) -> Iterator[str]:
    start = 0
    while (end := text.find(separator, start)) >= 0:
        yield text[start:end]
        start = end + len(separator)
    yield text[start:]


def _bounded(text: str) -> str:
    if len(text.encode()) > limits.VALUE_BYTES:
        raise _too_large()
    return text


def _too_large() -> NotApplicableError:
    return NotApplicableError(f"the result exceeds {limits.VALUE_BYTES:,} bytes")
