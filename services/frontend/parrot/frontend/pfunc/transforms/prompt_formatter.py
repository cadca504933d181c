"""The prototype's path of formatters."""

from parrot.compat.formatting import (
    AlwaysOneSpace,
    FuncMutator,
    PromptFormatter,
    PyIndentRemover,
    Sequential,
    SquashIntoOneLine,
    allowing_newline,
    standard_formatter,
)

__all__ = [
    "AlwaysOneSpace",
    "FuncMutator",
    "PromptFormatter",
    "PyIndentRemover",
    "Sequential",
    "SquashIntoOneLine",
    "allowing_newline",
    "standard_formatter",
]
