"""How the prototype binds arguments: inputs by place or by name, outputs by name only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parrot.compat import variables
from parrot.compat.body import REQUIRED, Parameter, ParamType
from parrot.errors import ParrotError, SessionError
from parrot.text import check_text
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.compat.functions import BasicFunction


class ArgumentError(ParrotError, TypeError, ValueError):
    """The arguments of a call don't fit the function's parameters."""


class BasicCall:
    """A function, and what each of its parameters is bound to.

    Attributes:
        func: the function.
        bindings: by parameter: the variable, or the text of an input; of a plain parameter, the object.
        output_vars: the outputs this call made variables for, in the parameters' order.

    Raises:
        ArgumentError: the arguments don't fit.
        InvalidText: a text holds a lone surrogate.
    """

    def __init__(self, func: BasicFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.func: BasicFunction = func
        self.bindings: dict[str, Any] = {}
        self.output_vars: list[SemanticVariable[Any]] = []
        self._bind_places(args)
        self._bind_names(kwargs)
        self._bind_outputs()

    def __repr__(self) -> str:
        bound = ", ".join(f"{name}={value!r}" for name, value in self.bindings.items())
        return f"<call of {self.func.name}: {bound}>"

    def __getattr__(self, name: str) -> Any:
        if hasattr(SemanticVariable, name):
            raise SessionError(
                f"{self.func.name} was called outside of any session, so that there is no variable to use; "
                "call it inside vm.run(...) or 'with P.Session():'"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def result(self) -> Any:
        """What a call returns: its one new output, or a tuple of them."""
        return self.output_vars[0] if len(self.output_vars) == 1 else tuple(self.output_vars)

    @property
    def variables(self) -> dict[str, SemanticVariable[Any]]:
        """The parameters that are bound to variables."""
        return {name: given for name, given in self.bindings.items() if isinstance(given, SemanticVariable)}

    @property
    def outputs(self) -> dict[str, SemanticVariable[Any]]:
        """The variable of each output, by parameter."""
        return {param.name: self.bindings[param.name] for param in self.func.outputs}

    def _bind_places(self, args: Sequence[Any]) -> None:
        inputs = self.func.inputs
        if len(args) > len(inputs):
            raise ArgumentError(
                f"{self.func.name} got too many positional arguments: {len(args)} for "
                f"{len(inputs)} inputs; outputs are passed by keyword"
            )
        for param, value in zip(inputs, args, strict=False):
            self._set(param, value)

    def _bind_names(self, kwargs: Mapping[str, Any]) -> None:
        for name, value in kwargs.items():
            if name in self.bindings:
                raise ArgumentError(f"{self.func.name} got multiple values for argument {name}")
            if name not in self.func.params_map:
                raise ArgumentError(f"{self.func.name} got an unexpected keyword argument {name}")
            self._set(self.func.params_map[name], value)
        left_out = [param for param in self.func.inputs if param.name not in self.bindings]
        for param in left_out:
            if param.default is not REQUIRED:
                self._set(param, param.default)
        missing = [param.name for param in left_out if param.name not in self.bindings]
        if missing:
            raise ArgumentError(f"{self.func.name} is missing arguments: {', '.join(missing)}")

    def _bind_outputs(self) -> None:
        for param in self.func.outputs:
            if param.name not in self.bindings:
                made = variables.SemanticVariable(param.name)
                made._type = param.output_type
                self.bindings[param.name] = made
                self.output_vars.append(made)

    def _set(self, param: Parameter, value: Any) -> None:
        if param.is_output and not isinstance(value, SemanticVariable):
            raise ArgumentError(
                f"{self.func.name}: {param.name} is an output; pass a variable for it, "
                f"not {type(value).__name__}"
            )
        plain = param.typ is ParamType.INPUT_PYOBJ or isinstance(value, SemanticVariable)
        self.bindings[param.name] = value if plain else self.text_of(param, value)

    def text_of(self, param: Parameter, value: object) -> str:
        """A value as the text that stands for it in a prompt.

        Raises:
            SessionError: it is a call, which was made outside of any session.
            InvalidText: it holds a lone surrogate.
        """
        if isinstance(value, BasicCall):
            _ = value.get  # Says what is wrong.
        return check_text(str(value), f"{self.func.name}: the argument {param.name}")
