"""Attention over a forest on GPUs: Triton kernels for Hopper (sm_90), from a plan's work lists.

`attention.GpuAttention` runs what `lists.DeviceLists` holds; these two need Triton and torch, the rest
neither.
"""

from parrot_kernels.gpu.geometry import AttentionError as AttentionError
from parrot_kernels.gpu.geometry import Geometry as Geometry
