"""Typed outputs: what a type demands of the text, and the value it becomes."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from parrot.annotated import shape_of
from parrot.errors import InvalidOutput
from parrot.guide import GUIDE_CHOICES, Guide
from parrot.shapes import Choice, Scalar, Shape, ShapeError, json_schema

SPACES: Final = "\t\n\f\r "
"""What `\\s` is to the server, which tries again until a text matches."""


class OutputType:
    """The type of an output.

    A text for `str`. The plain texts to choose from for a Literal, an Enum or a bool; JSON otherwise.

    Attributes:
        annotation: the type as it was given.
        guide: what holds the output to it; None: nothing has to.

    Raises:
        TypeError: it can't be the type of an output.
    """

    def __init__(self, annotation: object) -> None:
        self.annotation = annotation
        self._shape: Shape = shape_of(annotation)
        self._texts = _choices(self._shape)
        self.guide = self._guide()

    def __repr__(self) -> str:
        return f"OutputType({self.annotation!r})"

    def read(self, text: str, name: str) -> Any:
        """The value a text stands for.

        Args:
            name: of the output, for the error.

        Raises:
            InvalidOutput: it stands for none.
        """
        if self.guide is None:
            return text
        try:
            return self._chosen(text) if self._texts else self._shape.read(_parsed(text), "")
        except ShapeError as error:
            shown = getattr(self.annotation, "__name__", str(self.annotation))
            raise InvalidOutput(f"{name or 'the output'} is no {shown}: {error}", text=text) from None

    def test(self) -> dict[str, Any]:
        """The condition that holds where a text is of the type, as the server takes it.

        Raises:
            TypeError: every text is.
        """
        if self._texts:
            return {"matches": rf"\A\s*({'|'.join(re.escape(text) for text in self._texts)})\s*\z"}
        if self.guide is None or self.guide.json_schema is None:
            raise TypeError("every text is a str; say until when to try again")
        return {"json_schema": str(self.guide.json_schema)}

    def _guide(self) -> Guide | None:
        if self._texts:
            return Guide(choice=list(self._texts))
        if isinstance(self._shape, Scalar) and self._shape.kind is str:
            return None
        return Guide(json_schema=json_schema(self._shape))

    def _chosen(self, text: str) -> Any:
        found = text if text in self._texts else text.strip(SPACES)
        if found not in self._texts:
            raise ShapeError(f"it is none of {', '.join(self._texts)}")
        return self._texts[found]


def _choices(shape: Shape) -> dict[str, Any]:
    """The value of each text that may be chosen; none: the type is more than a choice."""
    if isinstance(shape, Scalar) and shape.kind is bool:
        return {"true": True, "false": False}
    if not isinstance(shape, Choice) or len(shape.members) > GUIDE_CHOICES:
        return {}
    texts = {known if isinstance(known, str) else json.dumps(known): value for known, value in shape.members}
    # Where two are one text, or one is no text at all, they are told apart as JSON.
    return texts if len(texts) == len(shape.members) and all(texts) else {}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"it is no JSON ({error})") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


TEXT: Final = OutputType(str)
"""An output that is a text."""


def list_of(item: OutputType) -> ListType:
    """The type of what a map collects: a JSON array of texts, each of the type `item`."""
    return ListType(item)


class ListType(OutputType):
    """A JSON array of texts, each of which is of a type."""

    def __init__(self, item: OutputType) -> None:
        super().__init__(list[str])
        self._item = item

    def read(self, text: str, name: str) -> list[Any]:
        """As `OutputType.read`; a list of the items' values."""
        return [
            self._item.read(item, f"{name}[{place}]") for place, item in enumerate(super().read(text, name))
        ]
