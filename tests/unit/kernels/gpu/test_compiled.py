"""What is shipped compiles for sm_90, keeps everything in registers, and fits as often as it is started."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parrot_kernels.gpu import AttentionError, Geometry
from parrot_kernels.gpu.variants import Variant

triton = pytest.importorskip("triton")
compiled = pytest.importorskip("parrot_kernels.gpu.compiled")

REGISTERS = 65_536
SHARED_BYTES = 228 * 1024
RESERVED_BYTES = 1024
"""Of one of Hopper's multiprocessors, and of its shared memory for each program (CUDA's tuning guide)."""


def variant(
    *, tma: bool = True, ragged: bool = False, group: int = 4, kv_heads: int = 8, head_size: int = 128,
    kv: str = "bfloat16",
) -> Variant:  # fmt: skip
    block = 64 if tma else 16
    geometry = Geometry(group * kv_heads, kv_heads, head_size, block, "bfloat16", kv)
    return Variant(geometry, tma=tma, ragged=ragged)


LIMITS = {
    "grouped": (variant(), 224),
    "grouped, gathered": (variant(tma=False), 200),
    "each its own": (variant(group=1, kv_heads=32), 224),
    "float8": (variant(kv="float8_e4m3fn"), 192),
    "float8, gathered": (variant(kv="float8_e4m3fn", tma=False), 240),
    "small heads": (variant(head_size=64), 184),
    "fill": (variant(ragged=True), 216),
    "fill, gathered": (variant(ragged=True, tma=False), 184),
}
"""Registers of a thread, at most: what was found when they were chosen, and some room. They are this
compiler's: others take up to a tenth more, and fit as well."""
THEIR_COMPILER = "3.9."


@pytest.mark.parametrize("name", LIMITS)
def test_every_variant_fits_as_often_as_it_is_started_and_spills_nothing(name: str) -> None:
    made, registers = LIMITS[name]
    found = compiled.attend_resources(made)
    assert (found.spilled_bytes, found.scratch_bytes) == (0, 0)
    if triton.__version__.startswith(THEIR_COMPILER):
        assert found.registers <= registers
    programs = made.programs_per_processor
    assert programs * 32 * made.warps * (-(-found.registers // 8) * 8) <= REGISTERS
    assert programs * (found.shared_bytes + RESERVED_BYTES) <= SHARED_BYTES
    # Many rows are multiplied by warp groups, and boxes are fetched as such.
    assert found.wgmma > 0
    assert bool(found.tma) == made.tma


def test_the_merge_needs_little() -> None:
    found = compiled.merge_resources(variant().geometry)
    assert (found.spilled_bytes, found.shared_bytes) == (0, 0)
    assert found.registers <= 112


class Hopper:
    """What the compiler asks of a driver; nothing can be started with it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> Any:
        return compiled.TARGET


def started(made: Variant, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `GpuAttention` starts over four rows: each kernel's grid, and the kernel."""
    from parrot_kernels.gpu import attention, kernels, lists

    geometry, cpu = made.geometry, torch.device("cpu")
    found: list[Any] = []
    monkeypatch.setattr(triton.runtime.driver, "_active", Hopper())
    monkeypatch.setattr(attention, "_processors", lambda *_: 132)
    for kernel in (kernels.attend, kernels.merge):
        run = kernel.run

        def compile_only(*given: Any, run: Any = run, **options: Any) -> None:
            found.append((options["grid"], run(*given, **(options | {"warmup": True}))))

        monkeypatch.setattr(kernel, "run", compile_only)
    both = torch.zeros((5, 2, geometry.block_tokens, 8, 128), dtype=torch.bfloat16)
    query = torch.zeros((4, 32, 128), dtype=torch.bfloat16)
    held = lists.DeviceLists(geometry, geometry.capacity(4), cpu)
    tables = torch.zeros((4, 9), dtype=torch.int32)
    attention.GpuAttention(geometry, cpu).run(
        held, query, both[:, 0], both[:, 1], tables, torch.empty_like(query), scale=0.1
    )
    return found


@pytest.mark.parametrize("tma", [True, False])
def test_what_is_started_is_what_was_compiled(monkeypatch: pytest.MonkeyPatch, *, tma: bool) -> None:
    made = variant(tma=tma)
    (programs, attend), (grid, merge) = started(made, monkeypatch)
    assert (programs, grid) == ((264,), (4, 32))
    assert compiled.resources(attend) == compiled.attend_resources(made)
    assert compiled.resources(merge) == compiled.merge_resources(made.geometry)


def test_descriptors_are_arguments_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers of Triton 3.6 and 3.7 expand those alone (`expand_signature` of its NVIDIA driver)."""
    (_, attend), _ = started(variant(), monkeypatch)
    signature = attend.src.signature
    assert [name for name, kind in signature.items() if "tensordesc" in str(kind)] == ["key", "value"]
    assert not any("tensordesc" in str(kind) for kind in signature.values() if isinstance(kind, tuple))


def test_where_no_gpu_is_the_kernels_say_so() -> None:
    from parrot_kernels.gpu.attention import GpuAttention

    with pytest.raises(AttentionError, match="TRITON_INTERPRET"):
        GpuAttention(variant().geometry, torch.device("cpu"))
