"""The prototype's path of transforms one after another."""

from parrot.compat.formatting import Sequential

__all__ = ["Sequential"]
