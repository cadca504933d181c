"""What an output must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parrot.text import check_text

GUIDE_BYTES = 65_536
GUIDE_CHOICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What an output must be, one of four; checked when it is made.

    Attributes:
        json_schema: a JSON schema, as a mapping or as JSON text; kept as text.
        regex: a regular expression for the whole output.
        grammar: a context-free grammar, in GBNF.
        choice: the texts to choose from, 512 at most.

    Raises:
        ValueError: none of them is given, or several, or one is empty, too large (65,536 bytes) or no
            JSON schema.
        InvalidText: a text holds a lone surrogate.
        TypeError: one is of another type.
    """

    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | list[str] | None = None

    def __post_init__(self) -> None:
        if len(self.to_wire()) != 1:
            raise ValueError("a guide has one of json_schema, regex, grammar and choice")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None:
                _check_size(name, check_text(text, name))

    def to_wire(self) -> dict[str, Any]:
        """The guide as the server's API takes it."""
        given = {name: getattr(self, name) for name in ("json_schema", "regex", "grammar", "choice")}
        return {
            name: list(what) if isinstance(what, tuple) else what
            for name, what in given.items()
            if what is not None
        }


def _schema_text(schema: object) -> str:
    if isinstance(schema, str):
        text = check_text(schema, "json_schema")
        schema = _loads(text)
    elif isinstance(schema, Mapping):
        text = _dumps(dict(schema))
    else:
        raise TypeError(f"json_schema is a mapping or a JSON text, not {type(schema).__name__}")
    if not isinstance(schema, Mapping):
        raise ValueError("json_schema is no JSON object")
    return _check_size("json_schema", text)


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"json_schema is no JSON: {error}") from None


def _dumps(schema: dict[str, Any]) -> str:
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"json_schema has no JSON text: {error}") from None
    return check_text(text, "json_schema")


def _choices(choice: object) -> tuple[str, ...]:
    if not isinstance(choice, (tuple, list)):
        raise TypeError(f"choice is a list of texts, not {type(choice).__name__}")
    if not 1 <= len(choice) <= GUIDE_CHOICES:
        raise ValueError(f"choice has {len(choice)} texts; give 1 to {GUIDE_CHOICES}")
    for text in choice:
        if not check_text(text, "a text of choice"):
            raise ValueError("a text of choice is empty")
    _check_size("choice", "".join(choice))
    return tuple(choice)


def _check_size(name: str, text: str) -> str:
    if not 1 <= len(text.encode()) <= GUIDE_BYTES:
        raise ValueError(f"{name} has 1 to {GUIDE_BYTES:,} bytes of UTF-8")
    return text
