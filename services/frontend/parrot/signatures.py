"""What a Python function says of a semantic function: its parameters, and the text of its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from parrot.arguments import signature_of
from parrot.placeholders import Parameter

RESERVED: Final = "session"
_OURS: Final = ("SemanticVariable", "Input", "Output")


def parameters_of(
    function: Callable[..., Any], namespace: Mapping[str, Any], *, reserved: str = RESERVED
) -> dict[str, Parameter]:
    """What each parameter's annotation says.

    Args:
        namespace: what an annotation that is written as text may name, beside the function's globals.
        reserved: what none of them may be called.

    Raises:
        TypeError: they can't be the parameters of a semantic function.
    """
    scope = _scope(function, namespace)
    found: dict[str, Parameter] = {}
    for name, annotation in _annotations(function, scope, reserved):
        try:
            found[name] = Parameter(annotation, scope)
        except (TypeError, NameError, AttributeError) as error:
            raise TypeError(f"{function.__name__}: {name} can't be annotated so: {error}") from error
    return found


def call_signature(function: Callable[..., Any], outputs: Collection[str]) -> inspect.Signature:
    """Inputs as they were declared; outputs by keyword only, and optional."""
    declared = inspect.signature(function).parameters.values()
    inputs = [p.replace(annotation=p.empty) for p in declared if p.name not in outputs]
    inputs.sort(key=lambda parameter: parameter.kind)
    return signature_of(inputs, outputs)


def dedent(docstring: str) -> str:
    """A docstring without its common indentation and its blank first and last lines."""
    lines = docstring.split("\n")
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines[1:] if line.strip(" \t\r")]
    margin = _common(margins)
    lines = [lines[0].lstrip(" \t"), *(line.removeprefix(margin) for line in lines[1:])]
    while lines and not lines[0].strip(" \t\r"):
        del lines[0]
    while lines and not lines[-1].strip(" \t\r"):
        del lines[-1]
    return "\n".join(lines)


def _common(margins: list[str]) -> str:
    if not margins:
        return ""
    first, last = min(margins), max(margins)
    size = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return first[:size]


def _scope(function: Callable[..., Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {**getattr(function, "__globals__", {}), **namespace}


def _annotations(
    function: Callable[..., Any], scope: dict[str, Any], reserved: str = RESERVED
) -> Iterator[tuple[str, object]]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise TypeError(f"{function.__name__}: a semantic function has no *{parameter.name}")
        if parameter.name == reserved:
            raise TypeError(
                f"{function.__name__}: 'session' names the session of a call; rename the parameter"
            )
        yield parameter.name, _annotation(function, parameter, scope)


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, scope: dict[str, Any]) -> object:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)  # noqa: S307 - the caller's own source code
    except Exception as error:
        if any(word in annotation for word in _OURS):
            raise TypeError(
                f"{function.__name__}: the annotation of {parameter.name} can't be evaluated ({error!r})"
            ) from error
        return inspect.Parameter.empty  # A type that is there for type checkers only.
