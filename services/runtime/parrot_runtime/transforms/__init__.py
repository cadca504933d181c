"""Declarative, bounded transforms of a value, applied where the value is made or used.

Each maps a whole text to a whole text, in time linear in it. An output with transforms is not
streamed: its readers get the transformed value at its end. One textual form, from the SDK to the
engine:

    transform = "strip" | "strip_start" | "strip_end" | "first_line" | "lower" | "upper"
              | "split:" separator ":" index
              | "regex:" pattern
              | "json:" path
              | "join:" separator
    index     = an integer of at most five digits; below 0: counted from the end
    path      = [ name | step ] { "." name | step }
    step      = "[" index "]" | "[" JSON string "]"
    name      = text without . [ ] and "

- `strip` takes white space off both ends, `strip_start` and `strip_end` off one; `first_line` is the
  first line that is not blank, without its line end; `lower` and `upper` are Unicode's.
- `split` is one part of the text between separators; 0 is the first, -1 what follows the last
  separator. The separator may hold ":".
- `regex` is the first match of a regular expression in RE2's syntax (no look-around, no back
  references): its group named `value`, otherwise its first group, otherwise the whole match.
- `json` is a part of a JSON value: a string as it is, anything else as compact JSON. The empty path
  is the whole value.
- `join` is the items of a JSON list one after another, the separator between them.

A separator and a pattern are taken as they are: a line end is written as a line end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large
from parrot_runtime.transforms import json_values, patterns, texts
from parrot_runtime.transforms.base import InvalidTransformError as InvalidTransformError
from parrot_runtime.transforms.base import NotApplicableError as NotApplicableError
from parrot_runtime.transforms.base import TransformError as TransformError

Function = Callable[[str], str]

_PLAIN: Final[Mapping[str, Function]] = {
    "strip": str.strip,
    "strip_start": str.lstrip,
    "strip_end": str.rstrip,
    "first_line": texts.first_line,
    "lower": str.lower,
    "upper": str.upper,
}
_WITH_ARGUMENT: Final[Mapping[str, Callable[[str], Function]]] = {
    "split": texts.parse_split,
    "regex": patterns.parse_regex,
    "json": json_values.parse_json,
    "join": json_values.parse_join,
}
_FORMS: Final = (*_PLAIN, texts.SPLIT_FORM, patterns.REGEX_FORM, json_values.JSON_FORM, json_values.JOIN_FORM)
_SHOWN_CHARS: Final = 40
_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform that is ready to be applied; `name` is what stands before its first ":"."""

    name: str
    function: Function

    def __call__(self, text: str) -> str:
        """`text` transformed.

        Raises:
            NotApplicableError: it does not apply to this text, or its result is no value.
        """
        result = self.function(text)
        try:
            size = len(result.encode())
        except UnicodeEncodeError:
            raise NotApplicableError("the result holds half a character (a lone surrogate)") from None
        if size > limits.VALUE_BYTES:
            raise NotApplicableError(f"the result exceeds {limits.VALUE_BYTES:,} bytes")
        return result


# What is kept holds compiled patterns, of up to a mebibyte each.
@lru_cache(_KEPT)
def parse_transform(text: str) -> Transform:
    """The transform that `text` describes.

    Raises:
        InvalidTransformError: it describes none; says why and what would.
    """
    if len(text.encode(errors="replace")) > limits.TRANSFORM_BYTES:
        raise InvalidTransformError(f"it is longer than {limits.TRANSFORM_BYTES:,} bytes")
    name, colon, argument = text.partition(":")
    if not colon and name in _PLAIN:
        return Transform(name, _PLAIN[name])
    if colon and name in _WITH_ARGUMENT:
        return Transform(name, _WITH_ARGUMENT[name](argument))
    shown = repr(name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…")
    if name in _PLAIN:
        raise InvalidTransformError(f"{shown} takes nothing; leave out what follows it")
    if name in _WITH_ARGUMENT:
        raise InvalidTransformError(f"{shown} lacks what follows its name; there are {', '.join(_FORMS)}")
    raise InvalidTransformError(f"there is no transform {shown}; there are {', '.join(_FORMS)}")


def apply(text: str, names: Iterable[str]) -> str:
    """`text` after each transform of `names`, in order.

    A second or so each at the worst: long texts belong off the event loop.

    Raises:
        InvalidTransformError: one of `names` describes none; nothing was applied.
        NotApplicableError: one does not apply. Says which and why, and nothing of the text.
    """
    for place, transform in enumerate(parse_transforms(names)):
        try:
            text = transform(text)
        except NotApplicableError as error:
            why = f"transform {place + 1} ({transform.name}) does not apply: {error}"
            raise NotApplicableError(why, place) from None
    return text


def parse_transforms(names: Iterable[str]) -> list[Transform]:
    """The transforms that `names` describe.

    Raises:
        InvalidTransformError: one of them describes none; has its place.
    """
    return [_parse_at(place, name) for place, name in enumerate(names)]


class TransformChecker:
    """Checks the transforms of one request, which may bring only so many patterns to be compiled.

    After `begin_call`, those of one call are counted too.
    """

    def __init__(self) -> None:
        self._patterns: set[str] = set()
        self._in_call: int | None = None

    def begin_call(self) -> None:
        """What is checked from now on, up to the next one, are the placeholders of one call."""
        self._in_call = 0

    def check(self, names: Sequence[str], field: str) -> None:
        """Checks the transforms of one placeholder.

        Raises:
            Fault: `too_large`, `invalid_text`, or `invalid_request` with the path of the transform.
        """
        if len(names) > limits.TRANSFORMS:
            raise too_large(field, len(names), limits.TRANSFORMS, unit="transforms")
        self._count(len(names), field)
        for place, name in enumerate(names):
            self._check(name, f"{field}[{place}]")

    def _count(self, more: int, field: str) -> None:
        if self._in_call is None:
            return
        self._in_call += more
        if self._in_call > limits.CALL_TRANSFORMS:
            raise Fault(
                errors.TOO_LARGE,
                f"{field}: with these the call has {self._in_call} transforms; the limit is "
                f"{limits.CALL_TRANSFORMS} in all its placeholders; leave some out, or make several calls",
                field=field,
            )

    def _check(self, name: str, field: str) -> None:
        check_text(name, field, limit_bytes=limits.TRANSFORM_BYTES)
        if name.startswith("regex:"):
            self._patterns.add(name)
            if len(self._patterns) > limits.BATCH_PATTERNS:
                raise too_large(
                    field, len(self._patterns), limits.BATCH_PATTERNS, unit="patterns in a request"
                )
        try:
            parse_transform(name)
        except InvalidTransformError as error:
            raise Fault(errors.INVALID_REQUEST, f"{field}: {error.why}", field=field) from None


def _parse_at(place: int, name: str) -> Transform:
    try:
        return parse_transform(name)
    except InvalidTransformError as error:
        raise InvalidTransformError(error.why, place) from None
