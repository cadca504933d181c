"""The prototype's path of criteria."""

from parrot.criteria import PerformanceCriteria

__all__ = ["PerformanceCriteria"]
