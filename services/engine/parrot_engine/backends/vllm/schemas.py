"""JSON schemas as xgrammar is to read them.

For a string whose length is bounded, xgrammar (0.2) makes a rule of its own, which lets control characters
through that JSON does not have in a string: what is made of it could not be read. Nor does it mind the bytes
that would be half of a pair of surrogates, each of which is read as three characters: the string would be too
long. A pattern rules both out, but takes a time that grows with the square of the length; so long ones, and
those of a schema that has very many, are left as they are.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

MOST_CHARS: Final = 256
MOST_STRINGS: Final = 32
_BOUNDS: Final = ("minLength", "maxLength")
_OTHER_RULES: Final = ("pattern", "format", "enum", "const")
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""What stands there is data, not a schema."""


@lru_cache(maxsize=256)
def readable(schema: str) -> str:
    """The same schema, in which strings of bounded length hold neither control characters nor surrogates.

    What is no schema stays as it is: vLLM says what is wrong with it.
    """
    try:
        return json.dumps(_Reading().of(json.loads(schema)), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return schema


class _Reading:
    """One schema's way through."""

    def __init__(self) -> None:
        self._left = MOST_STRINGS

    def of(self, node: Any) -> Any:
        """A part of the schema, as it is to be read."""
        if isinstance(node, list):
            return [self.of(item) for item in node]
        if not isinstance(node, dict):
            return node
        made = {name: value if name in _VALUES else self.of(value) for name, value in node.items()}
        if not _is_bounded_string(node) or not self._left:
            return made
        self._left -= 1
        least, most = int(made.pop("minLength", 0)), made.pop("maxLength", None)
        count = f"{least}," if most is None else f"{least},{int(most)}"
        return made | {"pattern": f'^[^"\\\\\\x00-\\x1f\\ud800-\\udfff]{{{count}}}$'}


def _is_bounded_string(node: dict[str, Any]) -> bool:
    bounds = [node[name] for name in _BOUNDS if name in node]
    alone = not any(name in node for name in _OTHER_RULES)
    return node.get("type") == "string" and alone and bool(bounds) and max(bounds) <= MOST_CHARS
