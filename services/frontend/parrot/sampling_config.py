"""The prototype's path of sampling."""

from parrot.sampling import SamplingConfig

__all__ = ["SamplingConfig"]
