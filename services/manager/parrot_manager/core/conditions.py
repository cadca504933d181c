"""Questions about a value, asked when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from parrot_manager.core import schemas
from parrot_runtime import transforms
from parrot_runtime.transforms import NotApplicableError, patterns
from parrot_runtime.transforms.json_values import parse_value

_KEPT: Final = 64


class Predicate(Enum):
    """The kinds of `manager.v1.Condition`."""

    EQUALS = "equals"
    CONTAINS = "contains"
    MATCHES = "matches"
    JSON_SCHEMA = "json_schema"
    EMPTY = "empty"
    IS_JSON = "is_json"


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a variable's value, transformed, passes a test; `operand` is the text that takes."""

    variable_id: str
    test: Predicate
    operand: str = ""
    transforms: tuple[str, ...] = ()
    negate: bool = False


class UndecidedError(Exception):
    """A condition takes too long on this value to be decided; says why, and nothing of the value."""


def holds(condition: Condition, text: str) -> bool:
    """Whether a condition holds for a value.

    It does not, negated or not, where one of its transforms does not apply.

    Raises:
        UndecidedError: that can't be told in a bounded time.
    """
    try:
        text = transforms.apply(text, condition.transforms)
    except NotApplicableError:
        return False
    return _passes(condition, text) != condition.negate


def _passes(condition: Condition, text: str) -> bool:
    if condition.test is Predicate.EQUALS:
        return text == condition.operand
    if condition.test is Predicate.CONTAINS:
        return condition.operand in text
    if condition.test is Predicate.MATCHES:
        return _matches(condition.operand, text)
    if condition.test is Predicate.EMPTY:
        return not text
    if condition.test is Predicate.IS_JSON:
        return _parsed(text) is not _NO_JSON
    return _admitted(condition.operand, text)


def _matches(pattern: str, text: str) -> bool:
    try:
        return patterns.search(_compiled(pattern), text) is not None
    except NotApplicableError as error:
        raise UndecidedError(str(error)) from None


def _admitted(schema: str, text: str) -> bool:
    if len(text) > schemas.TEXT_CHARS:
        raise UndecidedError(
            f"the text is too long for a JSON schema, which takes {schemas.TEXT_CHARS:,} characters"
        )
    value = _parsed(text)
    try:
        return value is not _NO_JSON and schemas.admits(schema, value)
    except schemas.TooMuchError:
        raise UndecidedError("checking it against the JSON schema takes too many steps") from None


def _parsed(text: str) -> Any:
    try:
        return parse_value(text)
    except NotApplicableError:
        return _NO_JSON


@lru_cache(_KEPT)
def _compiled(pattern: str) -> Any:
    return patterns.compiled(pattern)


_NO_JSON: Final = object()
