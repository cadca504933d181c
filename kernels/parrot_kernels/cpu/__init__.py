"""Decode attention on the CPU, from a plan's work list."""

from parrot_kernels.cpu.attention import AttentionError as AttentionError
from parrot_kernels.cpu.attention import CpuAttention as CpuAttention
from parrot_kernels.cpu.attention import Layout as Layout
from parrot_kernels.cpu.attention import Processor as Processor
from parrot_kernels.cpu.attention import best_processor as best_processor
