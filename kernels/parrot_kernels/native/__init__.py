"""The compiled part."""

from parrot_kernels.native.build import BuildError as BuildError
from parrot_kernels.native.build import library as library
