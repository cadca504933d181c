"""Transforms of JSON texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from parrot_runtime import limits
from parrot_runtime.transforms.base import InvalidTransformError, NotApplicableError

JSON_FORM: Final = "json:<path>"
JOIN_FORM: Final = "join:<separator>"

_STEP = re.compile(r'\.([^.\[\]"]+)|\[(-?[0-9]{1,5})\]|\[("(?:[^"\\]|\\.)*")\]', re.DOTALL)

Path = tuple[str | int, ...]


def parse_json(argument: str) -> Callable[[str], str]:
    """The transform `json:<argument>`.

    Raises:
        InvalidTransformError: the path is not well formed; says from which character on.
    """
    return partial(_json, path=_path(argument))


def parse_join(argument: str) -> Callable[[str], str]:
    """The transform `join:<argument>`."""
    return partial(_join, separator=argument)


def _path(argument: str) -> Path:
    # A name at the start is like any other, but for its dot.
    dots = 1 if argument and not argument.startswith("[") else 0
    text = "." * dots + argument
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise _malformed(at - dots)
        steps.append(_key(step, at - dots))
        at = step.end()
    return tuple(steps)


def _key(step: re.Match[str], at: int) -> str | int:
    name, index, quoted = step.groups()
    if index is not None:
        return int(index)
    if quoted is None:
        return str(name)
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise _malformed(at) from None


def _malformed(at: int) -> InvalidTransformError:
    return InvalidTransformError(
        f"the path is not well formed from character {max(at, 0)} on; write it as in "
        'json:answers[0].text, and a key that is no name as in json:["a.b"]'
    )


def _json(text: str, *, path: Path) -> str:
    value = parse_value(text)
    for place, key in enumerate(path):
        value = _item(value, key, place)
    return shown(value)


def _item(value: Any, key: str | int, place: int) -> Any:
    fits = isinstance(value, dict if isinstance(key, str) else list)
    what, item = ("object", "key") if isinstance(key, str) else ("list", "item")
    if not fits:
        raise NotApplicableError(f"there is no JSON {what} for step {place + 1} of its path")
    try:
        return value[key]
    except (KeyError, IndexError):
        raise NotApplicableError(f"there is no such {item} for step {place + 1} of its path") from None


def _join(text: str, *, separator: str) -> str:
    value = parse_value(text)
    if not isinstance(value, list):
        raise NotApplicableError("the text is no JSON list")
    items = [shown(item) for item in value]
    # Before it is made: a short text may hold millions of items.
    if sum(map(len, items)) + len(separator) * (len(items) - 1) > limits.VALUE_BYTES:
        raise NotApplicableError(f"the result exceeds {limits.VALUE_BYTES:,} bytes")
    return separator.join(items)


def parse_value(text: str) -> Any:
    """The value of a JSON text; every number in it is finite.

    Raises:
        NotApplicableError: the text is no JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise NotApplicableError(f"the text is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotApplicableError("the JSON is nested too deeply") from None
    except ValueError:
        raise NotApplicableError("the JSON holds a number that is too large, or none") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("beyond a double")
    return value


def shown(value: Any) -> str:
    """A JSON value as a text: a string as it is, anything else as compact JSON.

    Raises:
        NotApplicableError: it is nested too deeply.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise NotApplicableError("the JSON is nested too deeply") from None
