"""What a function is called with: a text or a variable for each input, a variable for each output."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from parrot.text import check_text
from parrot.typed import OutputType
from parrot.variable import SemanticVariable

Variable = SemanticVariable[Any]
Inputs = dict[str, str | Variable]
Outputs = dict[str, Variable]


class Arguments:
    """The inputs and outputs of a function, and how a call's arguments become them.

    Attributes:
        signature: how it is called.
    """

    def __init__(
        self, name: str, signature: inspect.Signature, inputs: Sequence[str], types: Mapping[str, OutputType]
    ) -> None:
        self.signature = signature
        self._name = name
        self._inputs = inputs
        self._types = types

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Inputs, Outputs]:
        """What stands for each input and each output.

        Raises:
            TypeError: the arguments do not fit.
            InvalidText: a text holds a lone surrogate.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        return (
            {name: self._input(name, given[name]) for name in self._inputs},
            {name: self._output(name, given.get(name)) for name in self._types},
        )

    def returned(self, outputs: Outputs) -> Any:
        """What a call returns: its output, or a tuple of several, each of its type."""
        for name, output in outputs.items():
            output._type = self._types[name]
        results = tuple(outputs.values())
        return results[0] if len(results) == 1 else results

    def _input(self, name: str, given: object) -> str | Variable:
        if isinstance(given, SemanticVariable):
            return given
        return check_text(text_of(given), f"{self._name}: the input {name}")

    def _output(self, name: str, given: object) -> Variable:
        if given is None:
            return SemanticVariable(name)
        if not isinstance(given, SemanticVariable):
            raise TypeError(
                f"{self._name}: {name} is an output; pass a variable for it, not {type(given).__name__}"
            )
        return given


def signature_of(inputs: Collection[inspect.Parameter], outputs: Collection[str]) -> inspect.Signature:
    """A signature of these inputs, and of outputs by keyword only, and optional."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [*inputs, *(inspect.Parameter(name, keyword, default=None) for name in sorted(outputs))]
    )


def text_of(given: object) -> str:
    """What is sent for a Python value: of a record, JSON from which its type can be read again."""
    is_record = dataclasses.is_dataclass(given) or hasattr(type(given), "model_dump_json")
    if is_record and not isinstance(given, type):
        return json.dumps(given, ensure_ascii=False, default=_plain)
    return str(given)


def _plain(value: Any) -> Any:
    """What JSON has no form for, in parts it has one for."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _deep(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def _deep(value: Any) -> Any:
    """The value, with named tuples, which JSON takes for lists, as objects."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _deep(found) for name, found in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _deep(found) for name, found in value.items()}
    return [_deep(found) for found in value] if isinstance(value, (list, tuple)) else value
