"""What a sandbox is as an engine's backend: it has no model, so it fills and generates nothing."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from parrot_engine.backends.base import (
    Backend,
    BackendError,
    BackendStats,
    FillResult,
    KvAudit,
    ModelInfo,
    Sampling,
    Step,
    UnsupportedError,
)
from parrot_engine.sandbox.slots import Function, Slot
from parrot_engine.text.tokens import PromptTokenizer

MODEL: Final = "python"
_NO_MODEL: Final = "this engine runs code, and no prompts"


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How much code at once, and the most that each may ask for."""

    capacity: int
    timeout_s: float
    memory_bytes: int


class SandboxBackend(Backend):
    """Keeps as many processes as functions run at once. They are started when the first is needed."""

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self._slots: list[Slot] = []
        self._free: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()
        self._running = 0

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            model=MODEL,
            context_window_tokens=0,
            backend="sandbox",
            version=importlib.metadata.version("pydantic-monty"),
            dtype="",
            kv_tokens=0,
            block_tokens=0,
            capacity=self.options.capacity,
        )

    @property
    def tokenizer(self) -> PromptTokenizer:
        raise UnsupportedError(_NO_MODEL)

    async def start(self) -> None:
        try:
            importlib.metadata.version("pydantic-monty")
        except importlib.metadata.PackageNotFoundError:
            raise BackendError("pydantic-monty is not installed; it comes with the extra `sandbox`") from None
        self._slots = [Slot(self.options.memory_bytes) for _ in range(self.options.capacity)]
        # One is started to see that it can be.
        await self._slots[0].start()
        for slot in reversed(self._slots):
            self._free.put_nowait(slot)

    async def stop(self) -> None:
        for slot in self._slots:
            await slot.stop()

    async def run(self, function: Function) -> dict[str, str]:
        """What a function makes, by the names of its outputs.

        Raises:
            Fault: `native_failed`, `too_large`.
            BackendError: the sandbox can't be started.
        """
        async with self._slot() as slot:
            return await slot.run(function)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[Slot]:
        slot = await self._free.get()
        self._running += 1
        try:
            yield slot
        finally:
            self._running -= 1
            self._free.put_nowait(slot)

    async def fill(
        self,
        token_ids: Sequence[int],
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        lazy: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        ahead: bool = False,
        ancestors: Sequence[str] = (),
    ) -> FillResult:
        raise UnsupportedError(_NO_MODEL)

    def generate(
        self,
        sampling: Sampling,
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        hold: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        beside_share: float = 0.0,
    ) -> AsyncGenerator[Step, None]:
        raise UnsupportedError(_NO_MODEL)

    async def free_context(self, context_id: str) -> None:
        """There are none."""

    async def release(self, context_id: str) -> None:
        """There are none."""

    async def expect_use(self, context_id: str, steps: float) -> None:
        """There are none."""

    def holds(self, context_id: str) -> bool:
        return False

    def stats(self) -> BackendStats:
        return BackendStats(running=self._running, waiting=0, contexts=0, kv_used_fraction=0.0)

    async def audit(self) -> KvAudit:
        return KvAudit(total_blocks=0, free_blocks=0, held_blocks=0, request_blocks=0)

    async def wait_dead(self) -> str:
        # A process that ends is replaced; nothing that code does ends the sandbox.
        await asyncio.Event().wait()
        raise AssertionError("never")
