"""Offers the backend to vLLM. Importing this imports no vLLM."""

from __future__ import annotations

import logging
from typing import Any, Final

NAME: Final = "PARROT"
CPU_CLASS: Final = "parrot_kernels.vllm_backend.cpu.ParrotCpuBackend"
GPU_CLASS: Final = "parrot_kernels.vllm_backend.gpu.ParrotGpuBackend"
UNLIKE: Final = (ImportError, AttributeError, KeyError, TypeError, ValueError)
"""What a vLLM that has other names, or others' signatures, raises."""
_MARK: Final = "offers_parrot"

log = logging.getLogger(__name__)


def register() -> None:
    """vLLM's plugin: `offer`, but a vLLM that it does not suit goes on without, and a warning says why.

    vLLM calls it in every process that has the package installed, whether the backend is wanted or not.
    """
    try:
        offer()
    except UNLIKE as error:
        log.warning("this vLLM is not offered %s: %s: %s", NAME, type(error).__name__, error)


def offer() -> Any:
    """Makes `PARROT` one of vLLM's attention backends; may be called again.

    Returns:
        `AttentionBackendEnum.PARROT`.

    Raises:
        Exception: one of `UNLIKE`: this vLLM is not one that it was made for, and has no `PARROT`.
    """
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        _have_chosen(type(current_platform))
    elif current_platform.is_cuda():
        from parrot_kernels.vllm_backend import gpu_tables

        gpu_tables.install()
    return _named(CPU_CLASS if on_cpu else GPU_CLASS)


def _named(path: str) -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, path)
        # A configuration that names it goes to processes in which no plugin was loaded, or never is.
        AttentionBackendEnum[NAME].__reduce_ex__ = _reduced
    return AttentionBackendEnum[NAME]


def _reduced(protocol: int) -> Any:
    return offer, ()


def _have_chosen(platform: Any) -> None:
    """Has the platform for CPUs, which knows one backend alone, take this one where it is asked for."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    choose, plain = platform.get_attn_backend_cls, AttentionBackendEnum.CPU_ATTN
    if getattr(choose, _MARK, False):
        return

    def chosen(cls: Any, selected_backend: Any, *asked: Any, **named: Any) -> Any:
        if getattr(selected_backend, "name", "") != NAME:
            return choose(selected_backend, *asked, **named)
        path = choose(plain, *asked, **named)
        # Whatever else vLLM would take has its reasons: latent attention has kernels of its own.
        return selected_backend.get_path() if path == plain.get_path() else path

    setattr(chosen, _MARK, True)
    platform.get_attn_backend_cls = classmethod(chosen)
