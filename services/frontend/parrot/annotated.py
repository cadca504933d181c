"""From a type as it is written in an annotation to its shape."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin

from parrot.shapes import (
    Anything,
    Array,
    Choice,
    Definitions,
    Field,
    Json,
    Model,
    OneOf,
    Record,
    Row,
    Scalar,
    Shape,
    Table,
)

_SUPPORTED: Final = (
    "dataclasses, TypedDicts, NamedTuples, pydantic models, Literal, Enum, str, int, float, bool, None, "
    "Any, and list, tuple, set, dict[str, ...] and unions of these"
)
_ARRAYS: Final[dict[object, Callable[[list[Any]], Any]]] = {
    list: list,
    Sequence: list,
    set: set,
    frozenset: frozenset,
}
_WRAPPERS: Final = (Required, NotRequired, Final)


def shape_of(annotation: object) -> Shape:
    """The shape of a type.

    Raises:
        TypeError: it has none; names the part that has none, and what has one.
    """
    return _Shapes().of(annotation)


class _Shapes:
    """The shapes of one type's parts; a record is made once, and may hold itself."""

    def __init__(self) -> None:
        self._records: dict[object, Shape] = {}

    def of(self, annotation: object) -> Shape:
        plain = _plain(annotation)
        ways = (self._simple, self._generic, self._class) if _hashable(plain) else ()
        for way in ways:
            if (found := way(plain)) is not None:
                return found
        raise TypeError(f"{_shown(annotation)} can't be the type of an output; it may be of {_SUPPORTED}")

    def _simple(self, annotation: object) -> Shape | None:
        if annotation is Any or annotation is object:
            return Anything()
        if annotation is None:
            return Scalar(type(None))
        if annotation in {list, set, frozenset}:
            return Array(_ARRAYS[annotation], Anything())
        if annotation is tuple:
            return Array(tuple, Anything())
        if annotation is dict:
            return Table(Anything())
        return Scalar(annotation) if annotation in _SCALARS else None  # type: ignore[arg-type]

    def _generic(self, annotation: object) -> Shape | None:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return _literal(annotation, arguments)
        if origin in {Union, types.UnionType}:
            return OneOf([self.of(argument) for argument in arguments])
        if origin in {dict, Mapping}:
            if arguments[0] is not str:
                raise TypeError(f"{_shown(annotation)} has keys that are no str; those of JSON objects are")
            return Table(self.of(arguments[1]))
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
            return Row([self.of(argument) for argument in arguments])
        array = tuple if origin is tuple else _ARRAYS.get(origin)
        return Array(array, self.of(arguments[0])) if array is not None else None

    def _class(self, annotation: object) -> Shape | None:
        if not isinstance(annotation, type):
            return None
        if annotation in self._records:
            return self._records[annotation]
        if issubclass(annotation, enum.Enum):
            return Choice([(_json_scalar(annotation, member.value), member) for member in annotation])
        if hasattr(annotation, "model_json_schema") and hasattr(annotation, "model_validate"):
            return Model(annotation)
        fields = _fields(annotation)
        return self._record(annotation, fields) if fields is not None else None

    def _record(self, kind: type, fields: Mapping[str, bool]) -> Shape:
        hints = _hints(kind)
        record = self._records[kind] = _Later(kind)
        record.record = Record(
            kind, [Field(name, self.of(hints[name]), required) for name, required in fields.items()]
        )
        return record.record


class _Later(Shape):
    """A record that is still being made, where its own fields name it."""

    record: Record

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def schema(self, definitions: Definitions) -> Json:
        return self.record.schema(definitions)

    def read(self, value: Any, path: str) -> Any:
        return self.record.read(value, path)


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _plain(annotation: object) -> object:
    """The type itself, without what is said about it.

    Raises:
        TypeError: what is said about it would be lost.
    """
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *about = get_args(annotation)
            for said in about:
                if type(said).__module__.partition(".")[0] in {"pydantic", "annotated_types"}:
                    raise TypeError(
                        f"{said!r} holds in pydantic models only; make one of what {_shown(annotation)} is in"
                    )
        elif origin in _WRAPPERS:
            (annotation,) = get_args(annotation)
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            return annotation


def _fields(kind: type) -> dict[str, bool] | None:
    """The fields of a record, and whether each must be there; None: it is no record."""
    if dataclasses.is_dataclass(kind):
        return {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
            if field.init
        }
    if typing.is_typeddict(kind):
        return _keys(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "__annotations__"):
        defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
        return {name: name not in defaults for name in kind._fields}
    return None


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, SyntaxError) as error:
        raise TypeError(
            f"the fields of {kind.__qualname__} can't be told ({error}); types that are written as text, as "
            "after 'from __future__ import annotations', have to be known to its module"
        ) from None


def _keys(kind: type) -> dict[str, bool]:
    # What is said in an annotation that is written as text is not in `__required_keys__`.
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
    said = {NotRequired: False, Required: True}
    return {name: said.get(get_origin(hint), name in required) for name, hint in _hints(kind).items()}


def _literal(annotation: object, values: Sequence[Any]) -> Shape:
    members = [
        (_json_scalar(annotation, value.value if isinstance(value, enum.Enum) else value), value)
        for value in values
    ]
    return Choice(members)


def _json_scalar(owner: object, value: object) -> object:
    if value is None or type(value) in _SCALARS:
        return value
    raise TypeError(f"{_shown(owner)} has the value {value!r}, which is no JSON scalar")


def _hashable(annotation: object) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True


def _shown(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
