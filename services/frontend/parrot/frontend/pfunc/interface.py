"""The prototype's path of decorators and annotations."""

from parrot.compat import Input, Output, native_function, semantic_function, variable

__all__ = ["Input", "Output", "native_function", "semantic_function", "variable"]
