"""What a Python type is in JSON: the schema it has, and how a JSON value becomes one of its values.

Dataclasses, TypedDicts, NamedTuples, pydantic models, Literals, Enums, lists, tuples, sets, dicts,
unions and the JSON scalars, within one another. Pydantic is used where its models are, and not needed.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

Json = dict[str, Any]


class ShapeError(ValueError):
    """A JSON value is not of a type; says where, and what it should be."""


class Definitions:
    """The schemas of records, each once, by the names they are referred to."""

    def __init__(self) -> None:
        self.schemas: Json = {}
        self._names: dict[object, str] = {}

    def refer(self, owner: object, name: str, schema: Callable[[], Json]) -> Json:
        """A reference to the owner's schema, which is made at the first."""
        if owner not in self._names:
            unique, number = name, 2
            while unique in self.schemas:
                unique, number = f"{name}{number}", number + 1
            self._names[owner] = unique
            self.schemas[unique] = {}  # The place is taken while its own parts refer to it.
            self.schemas[unique] = schema()
        return {"$ref": f"#/$defs/{self._names[owner]}"}


class Shape(ABC):
    """One type."""

    @abstractmethod
    def schema(self, definitions: Definitions) -> Json:
        """Its JSON schema."""

    @abstractmethod
    def read(self, value: Any, path: str) -> Any:
        """The type's value that a JSON value at `path` stands for.

        Raises:
            ShapeError: it stands for none.
        """


def json_schema(shape: Shape) -> Json:
    """The whole schema of a type: its own, with all it refers to."""
    definitions = Definitions()
    root = shape.schema(definitions)
    name = root.get("$ref", "").removeprefix("#/$defs/")
    if name:
        root = definitions.schemas[name]
        if not _refers(list(definitions.schemas.values()), f"#/$defs/{name}"):
            del definitions.schemas[name]
    return {**root, "$defs": definitions.schemas} if definitions.schemas else dict(root)


def _refers(found: Any, target: str) -> bool:
    if isinstance(found, dict):
        return found.get("$ref") == target or any(_refers(inner, target) for inner in found.values())
    return isinstance(found, list) and any(_refers(inner, target) for inner in found)


def _wrong(path: str, wanted: str, value: Any) -> NoReturn:
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    raise ShapeError(f"{path or 'the value'} is {kinds.get(type(value), 'a number')}, and not {wanted}")


class Scalar(Shape):
    """A text, a number, a truth value or null."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def schema(self, definitions: Definitions) -> Json:
        return {"type": _SCALARS[self.kind][0]}

    def read(self, value: Any, path: str) -> Any:
        if self.kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if self.kind is float and type(value) is int:
            return float(value)
        return value if type(value) is self.kind else _wrong(path, _SCALARS[self.kind][1], value)


_SCALARS: Final = {
    str: ("string", "a text"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    bool: ("boolean", "a truth value"),
    type(None): ("null", "null"),
}


class Anything(Shape):
    """Any JSON value."""

    def schema(self, definitions: Definitions) -> Json:
        return {}

    def read(self, value: Any, path: str) -> Any:
        return value


class Choice(Shape):
    """One of several values: of a Literal, or the members of an Enum by their values."""

    def __init__(self, members: Iterable[tuple[Any, Any]]) -> None:
        self.members = list(members)

    def schema(self, definitions: Definitions) -> Json:
        return {"enum": [value for value, _ in self.members]}

    def read(self, value: Any, path: str) -> Any:
        for known, member in self.members:
            if type(known) is type(value) and known == value:
                return member
        shown = ", ".join(repr(known) for known, _ in self.members[:_SHOWN])
        raise ShapeError(f"{path or 'the value'} is none of {shown}")


_SHOWN: Final = 20


class Array(Shape):
    """A list, set or tuple of any length."""

    def __init__(self, make: Callable[[list[Any]], Any], item: Shape) -> None:
        self._make = make
        self._item = item

    def schema(self, definitions: Definitions) -> Json:
        return {"type": "array", "items": self._item.schema(definitions)}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            _wrong(path, "an array", value)
        items = [self._item.read(item, f"{path}[{place}]") for place, item in enumerate(value)]
        try:
            return self._make(items)
        except TypeError:
            raise ShapeError(f"{path or 'the value'} has items that can't be in a set") from None


class Row(Shape):
    """A tuple of a length."""

    def __init__(self, items: Sequence[Shape]) -> None:
        self._items = items

    def schema(self, definitions: Definitions) -> Json:
        count = len(self._items)
        items = [item.schema(definitions) for item in self._items]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": count, "maxItems": count}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(self._items):
            _wrong(path, f"an array of {len(self._items)}", value)
        pairs = zip(self._items, value, strict=True)
        return tuple(item.read(found, f"{path}[{place}]") for place, (item, found) in enumerate(pairs))


class Table(Shape):
    """A dict with texts for keys."""

    def __init__(self, value: Shape) -> None:
        self._value = value

    def schema(self, definitions: Definitions) -> Json:
        return {"type": "object", "additionalProperties": self._value.schema(definitions)}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _wrong(path, "an object", value)
        return {name: self._value.read(found, f"{path}.{name}") for name, found in value.items()}


class OneOf(Shape):
    """A union: the first of its types that fits."""

    def __init__(self, options: Sequence[Shape]) -> None:
        self._options = options

    def schema(self, definitions: Definitions) -> Json:
        return {"anyOf": [option.schema(definitions) for option in self._options]}

    def read(self, value: Any, path: str) -> Any:
        problems: list[str] = []
        for option in self._options:
            try:
                return option.read(value, path)
            except ShapeError as error:
                problems.append(str(error))
        raise ShapeError("; or ".join(problems))


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A part of a record."""

    name: str
    shape: Shape
    required: bool


class Record(Shape):
    """A dataclass, TypedDict or NamedTuple: an object with these fields and no others."""

    def __init__(self, kind: type, fields: Sequence[Field]) -> None:
        self._kind = kind
        self.fields = fields

    def schema(self, definitions: Definitions) -> Json:
        return definitions.refer(self._kind, self._kind.__name__, lambda: self._schema(definitions))

    def _schema(self, definitions: Definitions) -> Json:
        return {
            "type": "object",
            "properties": {field.name: field.shape.schema(definitions) for field in self.fields},
            "required": [field.name for field in self.fields if field.required],
            "additionalProperties": False,
        }

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _wrong(path, "an object", value)
        inside = f"{path}." if path else ""
        shapes = {field.name: field.shape for field in self.fields}
        for name in value:
            if name not in shapes:
                raise ShapeError(f"{inside}{name} is no field of {self._kind.__name__}")
        for field in self.fields:
            if field.required and field.name not in value:
                raise ShapeError(f"{inside}{field.name} is missing")
        found = {name: shapes[name].read(item, f"{inside}{name}") for name, item in value.items()}
        try:
            return self._kind(**found)
        except (ValueError, TypeError) as error:  # A check of the dataclass's own.
            raise ShapeError(f"{path or 'the value'} is refused by {self._kind.__name__}: {error}") from None


class Model(Shape):
    """A pydantic model."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def schema(self, definitions: Definitions) -> Json:
        return definitions.refer(self._model, self._model.__name__, lambda: self._schema(definitions))

    def _schema(self, definitions: Definitions) -> Json:
        whole: Json = self._model.model_json_schema()
        inner: Json = whole.pop("$defs", {})
        names = {name: f"{self._model.__name__}.{name}" for name in inner}
        for name, schema in inner.items():
            definitions.schemas[names[name]] = _renamed(schema, names)
        return _inlined(_renamed(whole, names), definitions)

    def read(self, value: Any, path: str) -> Any:
        try:
            return self._model.model_validate(value)
        except ValueError as error:
            raise ShapeError(f"{path or 'the value'}: {_first_line(error)}") from None


def _first_line(error: ValueError) -> str:
    found: list[Any] = getattr(error, "errors", list)()
    if not found:
        return str(error).partition("\n")[0]
    where = ".".join(str(part) for part in found[0]["loc"])
    return f"{where + ': ' if where else ''}{found[0]['msg']}"


def _renamed(found: Any, names: Mapping[str, str]) -> Any:
    if isinstance(found, dict):
        inner = {key: _renamed(value, names) for key, value in found.items()}
        name = str(inner.get("$ref", "")).removeprefix("#/$defs/")
        return {**inner, "$ref": f"#/$defs/{names[name]}"} if name in names else inner
    return [_renamed(item, names) for item in found] if isinstance(found, list) else found


def _inlined(schema: Json, definitions: Definitions) -> Json:
    """A recursive model's schema is nothing but a reference to itself; what it stands for instead."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return dict(definitions.schemas[name]) if name and len(schema) == 1 else schema
