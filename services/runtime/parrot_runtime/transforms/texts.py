"""Transforms of plain text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from parrot_runtime.transforms.base import InvalidTransformError, NotApplicableError

SPLIT_FORM: Final = "split:<separator>:<index>"

_INDEX = re.compile(r"-?[0-9]{1,5}")


def first_line(text: str) -> str:
    """The first line that is not blank, without its line end; empty when all are blank."""
    return next((line for line in text.splitlines() if line.strip()), "")


def parse_split(argument: str) -> Callable[[str], str]:
    """The transform `split:<argument>`.

    Raises:
        InvalidTransformError: it has no separator or no index.
    """
    separator, _, index = argument.rpartition(":")
    if not separator:
        raise InvalidTransformError(f"split has no separator; write {SPLIT_FORM}")
    if not _INDEX.fullmatch(index):
        raise InvalidTransformError(
            f"split ends with no index, an integer of at most five digits; write {SPLIT_FORM}"
        )
    return partial(_split, separator=separator, index=int(index))


def _split(text: str, *, separator: str, index: int) -> str:
    if index < 0:
        # str.rsplit takes time in proportion to text times separator; str.split doesn't.
        return _split(text[::-1], separator=separator[::-1], index=-1 - index)[::-1]
    parts = text.split(separator, index + 1)
    if index >= len(parts):
        raise NotApplicableError(f"the text has {len(parts):,} parts")
    return parts[index]
