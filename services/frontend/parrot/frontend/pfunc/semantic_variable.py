"""The prototype's path of variables."""

from parrot.compat.variables import SemanticVariable

__all__ = ["SemanticVariable"]
