"""Prefill ahead of time: what a paused program's prompt has so far is computed while it waits.

Static prefill computes the constant text before an input that is not there yet; dynamic prefill the
input itself, chunk by chunk as it is produced. Each chunk is an ordinary fill, so between two of them a
paused program holds nothing but KV that may be dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from parrot_engine.admission import Claim
from parrot_engine.backends.base import FillResult
from parrot_engine.programs.pace import Chunk
from parrot_engine.programs.tools import Tools


@dataclass(slots=True)
class Spent:
    """What prefill ahead of time took, in ms, and how many tokens it computed.

    Attributes:
        streamed_tokens: of inputs that were not there yet, computed before their end or not.
    """

    static_ms: float = 0.0
    dynamic_ms: float = 0.0
    static_tokens: int = 0
    dynamic_tokens: int = 0
    streamed_tokens: int = 0

    def add(self, result: FillResult, lasted_ms: float, *, dynamic: bool) -> None:
        """Takes in one fill."""
        if dynamic:
            self.dynamic_ms += lasted_ms
            self.dynamic_tokens += result.computed_tokens
        else:
            self.static_ms += lasted_ms
            self.static_tokens += result.computed_tokens


@dataclass(frozen=True, slots=True)
class Target:
    """The context that is prefilled, whose its tokens are, and how."""

    context_id: str
    private_to: str
    priority: int
    cache: bool
    step_ms: float = 0.0


class Prefill:
    """One paused context: takes tokens, and computes them in the background, one fill at a time.

    Attributes:
        dynamic: what was computed last is an input, and not the text before it.
    """

    def __init__(self, tools: Tools, claim: Claim, spent: Spent, target: Target) -> None:
        self._backend = tools.backend
        self._admission = tools.admission
        self._pace = tools.pace
        self._claim = claim
        self._spent = spent
        self._target = target
        self._pending: list[int] = []
        self._filling: asyncio.Task[None] | None = None
        self.dynamic = True

    def begin(self, own_tokens: int) -> None:
        """Starts computing what the context holds so far, if there is room for it.

        Args:
            own_tokens: of what it holds, what is not a shared context's.
        """
        if self._admission.hold(self._claim, own_tokens):
            self._start(dynamic=False)

    def add(self, token_ids: Sequence[int], chunk: Chunk | None, own_tokens: int) -> None:
        """Takes tokens; computes what is pending once it makes a chunk and pace and room allow.

        Args:
            chunk: None: nothing is computed for these.
            own_tokens: the program's own part of the context, with everything added so far.

        Raises:
            BackendError: a fill before it failed.
        """
        self._pending += token_ids
        self._spent.streamed_tokens += len(token_ids)
        if chunk is None or len(self._pending) < chunk.tokens:
            return
        if self._filling is not None:
            if not self._filling.done():
                return
            # What a fill that failed took with it would be missing in the prompt.
            self._filling.result()
        if not self._admission.hold(self._claim, own_tokens):
            return
        if self._pace.take(time.monotonic(), at_once=chunk.at_once):
            self._start(dynamic=True)

    async def settle(self) -> None:
        """Returns when nothing is being computed, with all tokens noted in the context.

        Raises:
            BackendError: a fill failed.
        """
        if self._filling is not None:
            await self._filling
        pending, self._pending = self._pending, []
        target = self._target
        await self._backend.fill(pending, target.context_id, private_to=target.private_to, lazy=True)

    async def stop(self) -> None:
        """Ends what is being computed; for when the program ends first."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    def _start(self, *, dynamic: bool) -> None:
        pending, self._pending = self._pending, []
        self.dynamic = dynamic
        self._filling = asyncio.create_task(self._fill(pending, dynamic=dynamic), name="prefill")

    async def _fill(self, token_ids: list[int], *, dynamic: bool) -> None:
        target = self._target
        started = time.monotonic()
        result = await self._backend.fill(
            token_ids,
            target.context_id,
            private_to=target.private_to if token_ids else "",
            cache=target.cache,
            priority=target.priority,
            step_ms=target.step_ms,
            ahead=True,
        )
        self._spent.add(result, (time.monotonic() - started) * 1000, dynamic=dynamic)
        if self._claim.dropped:
            # Its memory was asked for meanwhile.
            await self._backend.release(target.context_id)
