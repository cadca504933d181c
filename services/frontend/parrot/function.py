"""Semantic functions: a signature and a prompt template, called like a function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from parrot.batch import Call
from parrot.errors import PlaceholderError, TemplateError
from parrot.sampling import Input, Output, SamplingConfig
from parrot.session import Session, current
from parrot.template import Hole, bind, parse
from parrot.variable import SemanticVariable, check_text

_RESERVED = "session"
_Kind = Literal["input", "output", "variable", "value"]


class Function:
    """A semantic function. Calling it adds a call to the session and returns its outputs at once.

    Attributes:
        name: the Python function's name.
        template: the prompt, dedented.
        model: the model it wants; empty: any.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        model: str = "",
        sampling: SamplingConfig | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = check_text(function.__name__, "the name of a function")
        self.model = check_text(model, f"the model of {self.name}")
        self.template = check_text(_dedent(function.__doc__ or ""), f"the template of {self.name}")
        if not self.template:
            raise TemplateError(f"{self.name} has no docstring, which is its prompt template")
        parameters = _parameters(function, namespace or {})
        try:
            self._holes = _bound_holes(self.template, parameters)
        except PlaceholderError as error:
            raise PlaceholderError(
                f"{self.name}: {error}", line=error.line, column=error.column, name=error.name
            ) from None
        except TemplateError as error:
            raise TemplateError(
                f"{self.name}: {error}", line=error.line, column=error.column, name=error.name
            ) from None
        self._outputs = [name for name, direction in self._holes.items() if direction == "output"]
        self._sampling = {name: _sampling_of(parameters.get(name), sampling) for name in self._outputs}
        self._transforms = {name: _transforms_of(parameters.get(name)) for name in self._holes}
        self._signature = _call_signature(function, set(self._outputs))

    def __repr__(self) -> str:
        return f"<semantic function {self.name}{self._signature}>"

    def __call__(self, *args: Any, session: Session | None = None, **kwargs: Any) -> Any:
        """Adds a call, and returns its output, or a tuple of them in the template's order.

        Inputs are texts or variables; anything else is sent as `str()` of it, as a value that can't
        hold placeholders. A variable passed by keyword for an output becomes that output.

        Args:
            session: the session to join; by default the one whose `with` block this is in.

        Raises:
            TypeError: the arguments do not fit the function.
            SessionError: there is no session, or a variable can't be used here.
            InvalidText: a text holds a lone surrogate.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        inputs = {
            name: self._input(name, bound.arguments[name])
            for name, direction in self._holes.items()
            if direction == "input"
        }
        outputs = {name: self._output(name, bound.arguments.get(name)) for name in self._outputs}
        target = session or current(self.name)
        target._add(
            Call(self.name, self.model, self.template, inputs, outputs, self._sampling, self._transforms)
        )
        results = tuple(outputs.values())
        return results[0] if len(results) == 1 else results

    def _input(self, name: str, given: object) -> str | SemanticVariable:
        if isinstance(given, SemanticVariable):
            return given
        return check_text(str(given), f"{self.name}: the input {name}")

    def _output(self, name: str, given: object) -> SemanticVariable:
        if given is None:
            return SemanticVariable(name)
        if not isinstance(given, SemanticVariable):
            raise TypeError(
                f"{self.name}: {name} is an output; pass a variable for it, not {type(given).__name__}"
            )
        return given


@overload
def semantic_function(function: Callable[..., Any], /) -> Function: ...


@overload
def semantic_function(
    *, model: str = "", sampling: SamplingConfig | None = None
) -> Callable[[Callable[..., Any]], Function]: ...


def semantic_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    model: str = "",
    sampling: SamplingConfig | None = None,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Makes a semantic function of a Python function whose docstring is the prompt.

    Two grammars, which mix::

        @P.semantic_function
        def write_code(task: P.SemanticVariable):
            \"\"\"Write Python code of {{input:task}}.
            Code: {{output:code}}\"\"\"

        @P.semantic_function(model="smollm2-135m")
        def tell_a_joke(topic: P.Input, joke: P.Output(P.SamplingConfig(temperature=0.5))):
            \"\"\"Tell a joke about {{topic}}: {{joke}}\"\"\"

    A parameter with another annotation, or none, takes any Python object. The docstring's common
    indentation and its blank first and last lines are not part of the prompt; nothing else is changed.

    Args:
        model: the model it wants; empty: any.
        sampling: for outputs that have none of their own; by default `P.SamplingConfig()`.

    Raises:
        TemplateError: the template is not well formed, or does not fit the parameters.
        InvalidText: the template or the model holds a lone surrogate.
        TypeError: the parameters can't be those of a semantic function.
    """
    # Annotations written as text may name what the caller's function holds.
    namespace = dict(sys._getframe(1).f_locals)
    if function is not None:
        return Function(function, model=model, sampling=sampling, namespace=namespace)
    return functools.partial(Function, model=model, sampling=sampling, namespace=namespace)


def _dedent(docstring: str) -> str:
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


def _parameters(function: Callable[..., Any], namespace: Mapping[str, Any]) -> dict[str, object]:
    """Each parameter's annotation, evaluated where it is written as text."""
    found: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise TypeError(f"{function.__name__}: a semantic function has no *{parameter.name}")
        if parameter.name == _RESERVED:
            raise TypeError(
                f"{function.__name__}: 'session' names the session of a call; rename the parameter"
            )
        found[parameter.name] = _annotation(function, parameter, namespace)
    return found


def _annotation(
    function: Callable[..., Any], parameter: inspect.Parameter, namespace: Mapping[str, Any]
) -> object:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    scope = getattr(function, "__globals__", {})
    try:
        return eval(annotation, scope, dict(namespace))  # noqa: S307 - the caller's own source code
    except Exception as error:
        if any(word in annotation for word in ("SemanticVariable", "Input", "Output")):
            raise TypeError(
                f"{function.__name__}: the annotation of {parameter.name} can't be evaluated ({error!r})"
            ) from error
        return inspect.Parameter.empty  # A type that is there for type checkers only.


def _kind(annotation: object) -> _Kind:
    if annotation is Input or isinstance(annotation, Input):
        return "input"
    if annotation is Output or isinstance(annotation, Output):
        return "output"
    return "variable" if annotation is SemanticVariable else "value"


def _bound_holes(template: str, parameters: Mapping[str, object]) -> dict[str, str]:
    """Each hole's direction by its name, in the template's order."""
    pieces = parse(template)
    said = {p.name: p.direction for p in pieces if isinstance(p, Hole) and p.direction is not None}
    inputs: list[str] = []
    outputs: list[str] = []
    for name, annotation in parameters.items():
        kind = _kind(annotation)
        is_output = kind == "output" or (kind == "variable" and said.get(name) == "output")
        (outputs if is_output else inputs).append(name)
    # The paper's grammar: an output need not be a parameter.
    outputs += [name for name, way in said.items() if way == "output" and name not in parameters]
    bound = bind(pieces, inputs, outputs)
    return {piece.name: str(piece.direction) for piece in bound if isinstance(piece, Hole)}


def _sampling_of(annotation: object, default: SamplingConfig | None) -> dict[str, Any]:
    own = annotation.sampling_config if isinstance(annotation, Output) else None
    return (own or default or SamplingConfig()).to_wire()


def _transforms_of(annotation: object) -> tuple[str, ...]:
    return annotation.transforms if isinstance(annotation, (Input, Output)) else ()


def _call_signature(function: Callable[..., Any], outputs: set[str]) -> inspect.Signature:
    """Inputs as they were declared; outputs by keyword only, and optional."""
    declared = inspect.signature(function).parameters.values()
    inputs = [p.replace(annotation=p.empty) for p in declared if p.name not in outputs]
    inputs.sort(key=lambda parameter: parameter.kind)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [*inputs, *(inspect.Parameter(name, keyword, default=None) for name in sorted(outputs))]
    )
