"""The transform by a regular expression: RE2, whose time is linear in the text for every pattern.

The time is also in proportion to the pattern's program, and grows with its groups. Both are bounded,
and so is the product of program and text: what is left takes a second or so at most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import re2

from parrot_runtime.transforms.base import InvalidTransformError, NotApplicableError

REGEX_FORM: Final = "regex:<pattern>"
GROUPS: Final = 8
PROGRAM: Final = 10_000
"""Instructions of a compiled pattern."""
WORK: Final = 1 << 28
"""Instructions times bytes of text; five nanoseconds each at the worst."""

_MEMORY_BYTES: Final = 1 << 20
_GROUP: Final = "value"


def parse_regex(argument: str) -> Callable[[str], str]:
    """The transform `regex:<argument>`.

    Raises:
        InvalidTransformError: the pattern is none that RE2 knows, or too large.
    """
    if not argument:
        raise InvalidTransformError(f"regex has no pattern; write {REGEX_FORM}")
    pattern = compiled(argument)
    group = pattern.groupindex.get(_GROUP, min(pattern.groups, 1))
    return partial(_first_match, pattern=pattern, group=group)


def compiled(argument: str) -> Any:
    """A pattern for `search`.

    Raises:
        InvalidTransformError: it is none that RE2 knows, or too large.
    """
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        pattern = re2.compile(argument, options)
    except UnicodeEncodeError:
        raise InvalidTransformError("the pattern holds half a character (a lone surrogate)") from None
    except re2.error as error:
        raise InvalidTransformError(f"RE2 refuses the pattern: {_reason(error)}") from None
    if pattern.programsize > PROGRAM:
        raise InvalidTransformError("the pattern is too large when compiled; repeat less in it")
    if pattern.groups > GROUPS:
        raise InvalidTransformError(
            f"the pattern has {pattern.groups} groups; the limit is {GROUPS}; write (?:…) for the others"
        )
    return pattern


def search(pattern: Any, text: str) -> Any:
    """The first match of a compiled pattern; None: there is none.

    Raises:
        NotApplicableError: the text is too long for the pattern.
    """
    if len(text.encode()) * pattern.programsize > WORK:
        raise NotApplicableError(
            f"the text is too long for this pattern, which takes {WORK // pattern.programsize:,} bytes"
        )
    return pattern.search(text)


def _first_match(text: str, *, pattern: Any, group: int) -> str:
    found = search(pattern, text)
    value = None if found is None else found.group(group)
    if value is None:
        raise NotApplicableError("the pattern does not match" if found is None else "its group has no match")
    return str(value)


def _reason(error: Exception) -> str:
    """RE2's own words, which quote nothing but the pattern."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
