"""Compiles the kernels for sm_90 where no GPU is, and says what they take of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from parrot_kernels.gpu import kernels
from parrot_kernels.gpu.geometry import Geometry
from parrot_kernels.gpu.variants import OPTIONS, TILE_TOKENS, Variant

TARGET: Final = GPUTarget("cuda", 90, 32)
_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_TYPES: Final = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv"}
_DIVISIBLE: Final = [["tt.divisibility", 16]]

Signature = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program takes of a multiprocessor.

    Attributes:
        registers: of a thread, of which there are 32 x warps.
        spilled_bytes: of a thread, what did not fit in registers.
        shared_bytes: of the program.
        scratch_bytes: of the device's memory, which would have to be allocated at each launch.
        wgmma: warp group products in the code; without any, few rows are multiplied at once, or slowly.
        tma: fetches of boxes in the code.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    scratch_bytes: int
    wgmma: int
    tma: int


def attend_resources(variant: Variant) -> Resources:
    """Compiles `kernels.attend` as `GpuAttention` has it compiled."""
    return _compiled(kernels.attend, attend_signature(variant), variant.constants(), variant.warps)


def attend_signature(variant: Variant) -> Signature:
    """The types of what `GpuAttention` gives `kernels.attend`, constants aside."""
    made = variant.geometry
    query, kv = f"*{_TYPES[made.query_type]}", _TYPES[made.kv_type]
    box = f"tensordesc<{kv}[1, 1, {TILE_TOKENS}, {made.head_size}]>"
    memory = box if variant.tma else (f"*{kv}", "i32", "i32", "i32")
    return {
        "query": (query, "i32", "i32"),
        "key": memory,
        "value": memory,
        "out": (query, "i32", "i32"),
        "partials": ("*fp32", "*fp32"),
        "scales": ("fp32", "fp32"),
        "tables": "*i32",
        "lists": "*i32",
    }


def merge_resources(geometry: Geometry) -> Resources:
    """Compiles `kernels.merge`."""
    signature = {
        "out": (f"*{_TYPES[geometry.query_type]}", "i32", "i32"),
        "partials": ("*fp32", "*fp32"),
        "lists": "*i32",
    }
    constants = Variant(geometry, tma=True, ragged=False).merge_constants()
    return _compiled(kernels.merge, signature, constants, 1)


def _compiled(kernel: Any, signature: Signature, constants: dict[str, Any], warps: int) -> Resources:
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=_aligned(types))
    return resources(triton.compile(source, target=TARGET, options={"num_warps": warps, **OPTIONS}))


def resources(made: Any) -> Resources:
    """What a compiled kernel takes."""
    ptx = made.asm["ptx"]
    registers, stack, local = _usage(made.asm["cubin"])
    return Resources(
        registers=registers,
        spilled_bytes=stack + local,
        shared_bytes=made.metadata.shared,
        scratch_bytes=made.metadata.global_scratch_size,
        wgmma=ptx.count("wgmma.mma_async"),
        tma=ptx.count("bulk.tensor"),
    )


def _aligned(types: Signature) -> dict[tuple[int, ...], Any]:
    """Pointers and strides are multiples of 16, which the launcher finds by itself."""
    found: dict[tuple[int, ...], Any] = {}
    for place, kind in enumerate(types.values()):
        for at, each in enumerate(kind) if isinstance(kind, tuple) else [(None, kind)]:
            if each.startswith("*") or each == "i32":
                found[(place,) if at is None else (place, at)] = _DIVISIBLE
    return found


def _usage(cubin: bytes) -> tuple[int, int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.knobs.nvidia.cuobjdump.path)
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _USAGE.search(said)
    if found is None:
        raise RuntimeError(f"{tool} says nothing of registers: {said[:500]}")
    registers, stack, local = map(int, found.groups())
    return registers, stack, local
