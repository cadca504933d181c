"""JSON schemas (draft 2020-12) that anybody may send: what is a schema, and what one admits.

jsonschema does the work, within bounds of ours: regular expressions are RE2's, references stay in the
schema, and every keyword that is looked at counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import jsonschema
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from referencing import Registry

from parrot_runtime import limits
from parrot_runtime.transforms import InvalidTransformError, NotApplicableError, patterns

TEXT_CHARS: Final = 1 << 18
STEPS: Final = 200_000
"""Keywords looked at, and items and errors they come with; microseconds each."""

_DIALECTS: Final = {
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2020-12/schema#",
}
_CHARS_PER_STEP: Final = 256
_KEPT: Final = 64
_REFERENCE_FORM: Final = 'such as "#/$defs/name"'

# Where a schema holds schemas.
_ONE: Final = (
    "not",
    "if",
    "then",
    "else",
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
)
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_REFUSED: Final = (
    "$schema",
    "$id",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$vocabulary",
    "unevaluatedItems",
    "unevaluatedProperties",
)


class InvalidSchemaError(Exception):
    """A text is no schema that we take; says why."""


class TooMuchError(Exception):
    """A value takes too many steps to check."""


def check_schema(text: str) -> None:
    """Refuses what is no schema.

    Raises:
        InvalidSchemaError: says where and why.
    """
    schema = _loaded(text)
    _check_depth(schema)
    formats = FormatChecker(())
    formats.checks("regex", raises=InvalidTransformError)(_is_pattern)
    validator = Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=formats)
    error = next(validator.iter_errors(schema), None)
    if error is not None:
        why = str(error.cause) if error.cause else f"it breaks the rule {error.validator!r} of JSON schemas"
        raise InvalidSchemaError(f"at {_where(error.absolute_path)}: {why}")
    known = {id(found): where for where, found in _subschemas(schema)}
    for where, found in _subschemas(schema):
        _check_keywords(schema, where, found, known)


def admits(text: str, value: Any) -> bool:
    """Whether a schema that was checked admits a value.

    Raises:
        TooMuchError: that takes too many steps.
    """
    budget = _BUDGET.set(_Budget())
    try:
        return bool(_validator(text).is_valid(value))
    except (RecursionError, NotApplicableError):
        raise TooMuchError from None
    finally:
        _BUDGET.reset(budget)


@lru_cache(_KEPT)
def _validator(text: str) -> Any:
    return _Bounded(_loaded(text), registry=Registry())


def _loaded(text: str) -> Any:
    """The schema, without the names it has at its root."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidSchemaError("it is no JSON") from None
    if not isinstance(schema, dict):
        raise InvalidSchemaError("it is no JSON object")
    if schema.get("$schema", next(iter(_DIALECTS))) not in _DIALECTS:
        raise InvalidSchemaError("its $schema is not draft 2020-12; write it for that, or leave $schema out")
    return {key: value for key, value in schema.items() if key not in {"$schema", "$id"}}


def _check_depth(schema: Any) -> None:
    level = [schema]
    for _ in range(limits.SCHEMA_DEPTH):
        level = [inner for found in level for inner in _held(found) if isinstance(inner, dict | list)]
        if not level:
            return
    raise InvalidSchemaError(f"it is nested more than {limits.SCHEMA_DEPTH} levels deep")


def _held(found: Any) -> Iterable[Any]:
    return found.values() if isinstance(found, dict) else found


def _check_keywords(schema: Any, where: str, found: Any, known: dict[int, str]) -> None:
    if not isinstance(found, dict):
        return
    refused = next((name for name in _REFUSED if name in found), None)
    if refused is not None:
        raise InvalidSchemaError(f"at {where}: {refused} is not supported; leave it out")
    if "$ref" in found and id(_referred(schema, found["$ref"])) not in known:
        raise InvalidSchemaError(
            f"at {where}: $ref names no schema within this one; write one {_REFERENCE_FORM}"
        )


def _referred(schema: Any, reference: str) -> Any:
    """What a local JSON pointer names; None: nothing."""
    start, *steps = reference.split("/")
    found = schema if start == "#" else None
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schema and all within it, each with where it is."""
    waiting = [("#", schema)]
    while waiting:
        where, found = waiting.pop()
        yield where, found
        if isinstance(found, dict):
            waiting += _inner(where, found)


def _inner(where: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _ONE:
        if name in schema:
            yield f"{where}/{name}", schema[name]
    for name in _MANY:
        for place, inner in enumerate(schema.get(name, ())):
            yield f"{where}/{name}/{place}", inner
    for name in _NAMED:
        for key, inner in schema.get(name, {}).items():
            yield f"{where}/{name}/{key}", inner


def _is_pattern(text: object) -> bool:
    if isinstance(text, str):
        patterns.compiled(text)
    return True


def _where(path: Iterable[object]) -> str:
    return "/".join(["#", *map(str, path)])


@dataclass(slots=True)
class _Budget:
    left: int = STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchError


_BUDGET: Final[ContextVar[_Budget]] = ContextVar("budget")

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


def _counted(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        budget = _BUDGET.get()
        budget.spend(1 + _size(value) + _size(instance))
        for error in keyword(validator, value, instance, schema) or ():
            # Its message shows what it is about.
            budget.spend(1 + len(error.message) // _CHARS_PER_STEP)
            yield error

    return check


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0


@lru_cache(_KEPT)
def _compiled(pattern: str) -> Any:
    return patterns.compiled(pattern)


def _found(pattern: str, text: str) -> bool:
    return patterns.search(_compiled(pattern), text) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, named: dict[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, inner in named.items():
            _BUDGET.get().spend(len(instance))
            for key, value in instance.items():
                if _found(pattern, key):
                    yield from validator.descend(value, inner)


def _additional_properties(
    validator: Any, inner: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
    _BUDGET.get().spend(len(instance) * len(by_pattern))
    for key, value in instance.items():
        if key not in named and not any(_found(pattern, key) for pattern in by_pattern):
            yield from validator.descend(value, inner)


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list) and len(set(map(_canonical, instance))) < len(instance):
        yield ValidationError("has an item twice")


def _canonical(value: Any) -> str:
    """A text two values share if they are equal: 1 and 1.0 are."""
    text = json.dumps(_plain(value), sort_keys=True)
    _BUDGET.get().spend(len(text) // _CHARS_PER_STEP)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


_Bounded: Final = jsonschema.validators.extend(
    Draft202012Validator,
    {
        name: _counted(keyword)
        for name, keyword in {
            **Draft202012Validator.VALIDATORS,
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
            "uniqueItems": _unique_items,
        }.items()
    },
)
