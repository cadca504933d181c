"""A sandbox, and functions to run in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from parrot_engine.sandbox.backend import SandboxBackend, SandboxOptions
from parrot_engine.sandbox.slots import Function
from parrot_runtime import limits
from parrot_runtime.errors import Fault
from tests.support.manager import eventually
from tests.support.up import gone

MIB = limits.MIB
MEMORY_BYTES = 64 * MIB


@asynccontextmanager
async def running_sandbox() -> AsyncIterator[SandboxBackend]:
    """A sandbox of two places. At its end it must leave nothing behind."""
    made = SandboxBackend(SandboxOptions(capacity=2, timeout_s=10, memory_bytes=256 * MIB))
    await made.start()
    yield made
    processes = processes_of(made)
    await made.stop()
    await eventually(lambda: all_gone(processes))


async def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether processes have ended."""
    return all(map(gone, processes))


def processes_of(sandbox: SandboxBackend) -> list[psutil.Process]:
    """Every process of a sandbox."""
    own = [slot._process for slot in sandbox._slots if slot._process is not None]
    heads = [psutil.Process(process.pid) for process in own]
    return [*heads, *(child for head in heads for child in head.children(recursive=True))]


def function(source: str, timeout_s: float = 5, memory_bytes: int = MEMORY_BYTES) -> Function:
    """A function `f` of nothing, with one output."""
    return Function(source, "f", {}, ("out",), timeout_s, memory_bytes)


async def made(sandbox: SandboxBackend, source: str, **inputs: str) -> str:
    """What `f` returns."""
    return (await sandbox.run(Function(source, "f", inputs, ("out",), 5, MEMORY_BYTES)))["out"]


async def refused(sandbox: SandboxBackend, asked: Function) -> Fault:
    """Why a function makes nothing."""
    with pytest.raises(Fault) as caught:
        await sandbox.run(asked)
    return caught.value
