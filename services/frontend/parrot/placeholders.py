"""The annotations of a function's parameters: which are inputs, which are outputs, and of what type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Generic, Literal, get_args, get_origin

from parrot.sampling import SamplingConfig
from parrot.text import check_text
from parrot.typed import TEXT, OutputType
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")

TRANSFORMS = 16

Kind = Literal["input", "output", "variable", "value"]


class Input:
    """Annotates a parameter as an input: a text, or the variable that will hold one.

    `P.Input` alone, or `P.Input(transforms=...)` with what is done to the text first, in order: a
    transform or a list of them, such as "strip", "json:answers[0].text", "regex:Answer: (.*)". Where type
    checkers look on, write `Annotated[str, P.Input(transforms=...)]`.
    """

    def __init__(self, *, transforms: str | Sequence[str] = ()) -> None:
        self.transforms = transforms_of(transforms)


class Output(Generic[T]):
    """Annotates a parameter as an output: `P.Output`, `P.Output[T]`, or `P.Output(P.SamplingConfig(...))`.

    An output is made by the call. Pass a variable for it, by keyword, to choose which one. Of a type, its
    text is held to the type while it is generated, and `get` returns a value of it. With `transforms`,
    its text is what they make of what was generated, and comes whole, at its end; what is generated is
    not held to the type then. Where type checkers look on, `Annotated[T, P.Output(...)]` says the same.

    Args:
        sampling_config: how it is generated; by default as the function says.
        dispatch_annotation: taken from programs of the prototype, without effect: the server schedules.
        transforms: done to what was generated, in order.
        type: what it becomes: a Literal, an Enum, a dataclass, a pydantic model, `list[int]`, ...

    Raises:
        TypeError: `type` can't be the type of an output.
    """

    def __init__(
        self,
        sampling_config: SamplingConfig | None = None,
        dispatch_annotation: object = None,
        *,
        transforms: str | Sequence[str] = (),
        type: object = str,  # noqa: A002 - what it is
    ) -> None:
        if sampling_config is not None and not isinstance(sampling_config, SamplingConfig):
            raise TypeError(f"an output takes a P.SamplingConfig, not {sampling_config!r}; write type=...")
        self.sampling_config = sampling_config
        self.dispatch_annotation = dispatch_annotation
        self.transforms = transforms_of(transforms)
        self.output_type = TEXT if type is str else OutputType(type)

    def sampling(self, default: SamplingConfig | None) -> dict[str, Any]:
        """How it is generated, as the server takes it; `default` where it doesn't say."""
        wire = (self.sampling_config or default or SamplingConfig()).to_wire()
        guide = self.output_type.guide
        if guide is not None and not self.transforms:
            wire.setdefault("guide", guide.to_wire())
        return wire


class Parameter:
    """What an annotation says of its parameter.

    Attributes:
        kind: "variable" is an input or an output, whichever the template says; "value" is any object.
        output: how it is generated, should it be an output.
        transforms: of its text, should it be an input.
    """

    def __init__(self, annotation: object = None, namespace: Mapping[str, Any] | None = None) -> None:
        self.kind: Kind = "value"
        self.output: Output[Any] = Output()
        self.transforms: tuple[str, ...] = ()
        self._read(annotation, namespace or {})

    def _read(self, annotation: object, namespace: Mapping[str, Any]) -> None:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            self._read_annotated(arguments[0], arguments[1:], namespace)
        elif annotation is Input or isinstance(annotation, Input):
            self.kind = "input"
            self.transforms = annotation.transforms if isinstance(annotation, Input) else ()
        elif isinstance(annotation, Output):
            self.kind, self.output = "output", annotation
        elif annotation is Output or origin is Output:
            self.kind, self.output = "output", Output(type=_evaluated(arguments, namespace))
        elif annotation is SemanticVariable or origin is SemanticVariable:
            self.kind, self.output = "variable", Output(type=_evaluated(arguments, namespace))

    def _read_annotated(
        self, annotation: object, said: Sequence[object], namespace: Mapping[str, Any]
    ) -> None:
        self._read(annotation, namespace)
        plain = self.kind == "value"
        for one in said:
            found = one() if one is Input or one is Output else one
            if isinstance(found, Output) and found.output_type is TEXT:
                own = _evaluated((annotation,), namespace) if plain else self.output.output_type.annotation
                found = Output(found.sampling_config, transforms=found.transforms, type=own)
            if isinstance(found, (Input, Output)):
                self._read(found, namespace)


def _evaluated(arguments: Sequence[object], namespace: Mapping[str, Any]) -> object:
    """The type in brackets; one that is written as text is looked up."""
    if not arguments:
        return str
    given = arguments[0]
    if isinstance(given, ForwardRef):
        given = given.__forward_arg__
    if isinstance(given, str):
        return eval(given, dict(namespace))  # noqa: S307 - the caller's own source code
    return given


def transforms_of(given: object) -> tuple[str, ...]:
    """A transform, or a list of them, as a tuple.

    Raises:
        TypeError: it is neither.
        ValueError: there are too many.
        InvalidText: one holds a lone surrogate.
    """
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (tuple, list)):
        raise TypeError("transforms is a transform, or a list of them")
    if len(names) > TRANSFORMS:
        raise ValueError(f"there are {len(names)} transforms; the limit is {TRANSFORMS}")
    return tuple(check_text(name, "a transform") for name in names)
