"""The compiled part."""

from parrot_kernels.native.build import BuildError as BuildError
from parrot_kernels.native.load import library as library
from parrot_kernels.native.load import unavailable as unavailable
