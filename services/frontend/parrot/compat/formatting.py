"""The prototype's transforms of functions, byte for byte."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from parrot.compat.body import Constant, Parameter, ParameterLoc, Piece

if TYPE_CHECKING:
    from parrot.compat.functions import SemanticFunction

_LONGEST_RUN: Final = 16
"""Of blanks, that is replaced by one at once."""


class Transform(Protocol):
    """What makes another function of a function."""

    def transform(self, func: SemanticFunction) -> SemanticFunction:
        """The other function."""
        ...


class FuncMutator(ABC):
    """Makes a function of another one, piece by piece. The original stays as it is."""

    def transform(self, func: SemanticFunction) -> SemanticFunction:
        """The function that is made of `func`."""
        remapped = {param.name: self._visit_parameter(param) for param in func.params}
        self._param_remap = remapped
        body = [self._visit_body_piece(piece) for piece in func.body]
        return self._visit_func(func.evolve(params=list(remapped.values()), body=body))

    @abstractmethod
    def _visit_func(self, func: SemanticFunction) -> SemanticFunction:
        """The function as a whole, whose pieces have been visited."""

    def _visit_body_piece(self, body_piece: Piece) -> Piece:
        if isinstance(body_piece, Constant):
            return self._visit_constant(body_piece)
        return self._visit_param_loc(body_piece)

    @abstractmethod
    def _visit_constant(self, constant: Constant) -> Constant:
        """A text."""

    def _visit_param_loc(self, param_loc: ParameterLoc) -> ParameterLoc:
        return ParameterLoc(param_loc.idx, self._param_remap[param_loc.param.name])

    @abstractmethod
    def _visit_parameter(self, param: Parameter) -> Parameter:
        """A parameter."""


class Sequential:
    """Transforms one after another."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = tuple(transforms)

    def transform(self, func: SemanticFunction) -> SemanticFunction:
        """The function that the last of them makes."""
        for transform in self._transforms:
            func = transform.transform(func)
        return func


class PromptFormatter(FuncMutator):
    """Replaces texts in the constants of a body: pairs of what is replaced and by what, in order."""

    def __init__(self, replace_pairs: Sequence[Sequence[str]]) -> None:
        self._replace_pairs = [(old, new) for old, new in replace_pairs]

    def format(self, text: str) -> str:
        """A text with everything replaced."""
        for old, new in self._replace_pairs:
            text = text.replace(old, new)
        return text

    def _visit_func(self, func: SemanticFunction) -> SemanticFunction:
        return func

    def _visit_constant(self, constant: Constant) -> Constant:
        return Constant(constant.idx, self.format(constant.text))

    def _visit_parameter(self, param: Parameter) -> Parameter:
        return param


class PyIndentRemover(PromptFormatter):
    """Takes out every tab and every four blanks in a row, wherever they are."""

    def __init__(self) -> None:
        super().__init__([("\t", ""), ("    ", "")])


class SquashIntoOneLine(PromptFormatter):
    """Makes a blank of every line break."""

    def __init__(self) -> None:
        super().__init__([("\n", " ")])


class AlwaysOneSpace(PromptFormatter):
    """Makes one blank of several in a row."""

    def __init__(self) -> None:
        super().__init__([(" " * size, " ") for size in range(_LONGEST_RUN, 1, -1)])


standard_formatter: Final = Sequential([PyIndentRemover(), SquashIntoOneLine(), AlwaysOneSpace()])
"""No indentation, one line, single blanks."""

allowing_newline: Final = Sequential([PyIndentRemover(), AlwaysOneSpace()])
"""No indentation, single blanks; lines stay."""
