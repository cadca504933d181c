"""Conditions: questions about a variable, asked on the server when its value is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from parrot.placeholders import transforms_of
from parrot.text import check_text
from parrot.variable import SemanticVariable

Gate = Callable[[SemanticVariable[Any], "Condition", "tuple[Condition, ...]"], SemanticVariable[Any]]
"""A variable that is another one where a condition holds, and is left out where it doesn't. It gets all
the conditions the new variable is to stand under, too."""

_standing: ContextVar[tuple[Condition, ...]] = ContextVar("parrot_conditions", default=())


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """Whether a variable's text passes a test; made by `P.when`.

    `~condition` is its opposite. In `with condition:`, calls are made that run only if it holds; what
    reads their outputs is left out with them, and reading those raises `P.Skipped`. Where one of its
    transforms does not apply to the text, neither a condition nor its opposite holds.
    """

    variable: SemanticVariable[Any]
    test: Mapping[str, Any]
    transforms: tuple[str, ...] = ()
    negate: bool = False

    def __invert__(self) -> Condition:
        return replace(self, negate=not self.negate)

    def __bool__(self) -> bool:
        raise TypeError(
            "a condition is decided on the server, when its variable is there; it can't be asked here: use "
            "'with condition:' or P.cond"
        )

    def __enter__(self) -> Self:
        _standing.set((*_standing.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _standing.set(_standing.get()[:-1])

    def to_wire(self) -> dict[str, Any]:
        """The condition as the server's API takes it."""
        wire: dict[str, Any] = {"semantic_var_id": self.variable.id, **self.test}
        if self.transforms:
            wire["transforms"] = list(self.transforms)
        return wire | {"negate": True} if self.negate else wire

    def texts(self) -> list[str]:
        """Its texts, to be measured."""
        return [*self.transforms, *(text for text in self.test.values() if isinstance(text, str))]


def when(
    variable: SemanticVariable[Any],
    *,
    equals: str | None = None,
    contains: str | None = None,
    matches: str | None = None,
    json_schema: Mapping[str, Any] | str | None = None,
    is_json: bool = False,
    empty: bool = False,
    transforms: str | Sequence[str] = (),
    negate: bool = False,
) -> Condition:
    """A condition about a variable, with one test.

    Args:
        equals: the text is this one.
        contains: this is in it.
        matches: this regular expression, of RE2, is found in it, wherever.
        json_schema: it is JSON that this schema (draft 2020-12) admits.
        is_json: it is JSON.
        empty: it has no characters.
        transforms: done to the text before, in order, such as "strip", "lower" or "json:verdict".
        negate: it holds where the test fails.

    Raises:
        ValueError: there is no test, or more than one.
        TypeError: `variable` is none.
        InvalidText: a text holds a lone surrogate.
    """
    if not isinstance(variable, SemanticVariable):
        raise TypeError(f"a condition is about a variable, not {type(variable).__name__}")
    texts = {"equals": equals, "contains": contains, "matches": matches, "json_schema": _schema(json_schema)}
    test: dict[str, Any] = {name: check_text(text, name) for name, text in texts.items() if text is not None}
    test |= {name: True for name, asked in (("is_json", is_json), ("empty", empty)) if asked}
    if len(test) != 1:
        raise ValueError("a condition has one of equals, contains, matches, json_schema, is_json and empty")
    return Condition(variable, test, transforms_of(transforms), negate)


def standing() -> tuple[Condition, ...]:
    """The conditions whose `with` blocks this is in, the outermost first."""
    return _standing.get()


def combined(conditions: tuple[Condition, ...], gate: Gate) -> Condition | None:
    """A condition that holds where all do; None: there are none.

    Who asks about a variable that was left out is left out too. So the last condition says all, when what
    it is about stands under the others.
    """
    found: Condition | None = None
    under: tuple[Condition, ...] = ()
    for condition in dict.fromkeys(conditions):
        if found is None or set(under) <= set(condition.variable._under):
            found = condition
        else:
            found = replace(condition, variable=gate(condition.variable, found, under))
        under = (*under, condition)
    return found


class Aside:
    """In its `with` block, no condition stands; they stand again after it."""

    def __enter__(self) -> None:
        self._token = _standing.set(())

    def __exit__(self, *raised: object) -> None:
        _standing.reset(self._token)


def _schema(schema: Mapping[str, Any] | str | None) -> str | None:
    if schema is None or isinstance(schema, str):
        return schema
    return json.dumps(dict(schema), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
