"""Contexts that outlive the program that made them: filled once, found by every program that names them.

A shared context is named by its content, so whoever needs it sends the fill along: the first fills,
the others find it, and nobody fails because it was freed in between. Its KV is as droppable as any.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from parrot_engine.backends.base import Backend
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

KEEP_S: Final = 600.0

log = structlog.get_logger()

Report = Callable[[engine_pb2.AttachRequest], None]


@dataclass(frozen=True, slots=True)
class Prefix:
    """A shared context as a program names it.

    Attributes:
        tokens: all that it holds, its parent's included.
        steps_to_next_use: as the manager reckons; None: it did not say.
        ancestors: the shared contexts that it begins with.
        goes_on: the same program begins a longer one with it, whose KV its own is part of.
        priority, step_ms, ahead: of the program, for the fill; see `Backend.fill`.
    """

    context_id: str
    prefix_hash: str
    tokens: Sequence[int]
    steps_to_next_use: float | None = None
    ancestors: tuple[str, ...] = ()
    goes_on: bool = False
    priority: int = 0
    step_ms: float = 0.0
    ahead: bool = False

    @property
    def digest(self) -> bytes:
        """Says whether two are of one content."""
        return hashlib.blake2b(array("I", self.tokens).tobytes(), digest_size=16).digest()


@dataclass(slots=True)
class _Shared:
    prefix_hash: str
    digest: bytes
    tokens: int
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    users: int = 0
    unused_since_s: float = 0.0
    unwanted: bool = False
    in_kv: bool = False


class SharedContexts:
    """The shared contexts of one engine."""

    def __init__(self, backend: Backend, report: Report, *, keep_s: float = KEEP_S) -> None:
        """`keep_s`: how long one stays that nobody uses; `report` is told of what comes and goes."""
        self._backend = backend
        self._report = report
        self._keep_s = keep_s
        self._contexts: dict[str, _Shared] = {}

    def messages(self) -> list[engine_pb2.SharedContext]:
        """Every shared context that is filled."""
        return [self._message(name, found) for name, found in self._contexts.items() if found.filled.is_set()]

    @asynccontextmanager
    async def using(self, prefix: Prefix, fill: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """The context is there within the block, and is not freed.

        Args:
            fill: notes its tokens; called if it is not there.

        Raises:
            Fault: `engine_error`, when the id stands for another content here.
            BackendError: it could not be filled.
        """
        found = await self._find(prefix, fill)
        found.users += 1
        try:
            await self._expect(prefix)
            yield
        finally:
            found.users -= 1
            found.unused_since_s = time.monotonic()
            if found.unwanted:
                await asyncio.shield(self._free([prefix.context_id]))

    async def free(self, context_ids: Iterable[str]) -> None:
        """The manager needs them no longer; those in use go with their last user."""
        known = [context_id for context_id in dict.fromkeys(context_ids) if context_id in self._contexts]
        for context_id in known:
            self._contexts[context_id].unwanted = True
        await self._free(known)

    async def expect(self, uses: Iterable[engine_pb2.ContextUse]) -> None:
        """Tells the backend when contexts will be used; a negative number of steps is never."""
        for use in uses:
            if use.context_id in self._contexts:
                steps = use.steps_to_next_use if use.steps_to_next_use >= 0 else math.inf
                await self._backend.expect_use(use.context_id, steps)

    async def refresh(self) -> None:
        """Frees what nobody used for long, and reports whose KV came or went since the last time."""
        oldest_s = time.monotonic() - self._keep_s
        await self._free([name for name, found in self._contexts.items() if found.unused_since_s < oldest_s])
        changed = [
            name
            for name, found in self._contexts.items()
            if found.filled.is_set() and found.in_kv != self._backend.holds(name)
        ]
        for name in changed:
            self._contexts[name].in_kv = self._backend.holds(name)
        self._tell(changed, ())

    async def _find(self, prefix: Prefix, fill: Callable[[], Awaitable[None]]) -> _Shared:
        while (found := self._contexts.get(prefix.context_id)) is not None:
            if found.digest != prefix.digest:
                raise Fault(
                    errors.ENGINE_ERROR,
                    f"shared context {prefix.context_id} has another content here; name it by its content",
                )
            if found.filled.is_set():
                return found
            # Whoever fills it may fail; then it is gone, and the next in line fills it.
            await found.filled.wait()
        return await self._make(prefix, fill)

    async def _make(self, prefix: Prefix, fill: Callable[[], Awaitable[None]]) -> _Shared:
        found = self._contexts[prefix.context_id] = _Shared(
            prefix.prefix_hash, prefix.digest, len(prefix.tokens), unused_since_s=time.monotonic()
        )
        try:
            await fill()
            if not prefix.goes_on:
                await self._compute(prefix)
        except BaseException:
            try:
                await asyncio.shield(self._backend.free_context(prefix.context_id))
            finally:
                # Not before: whoever comes meanwhile waits, and then fills an empty context.
                del self._contexts[prefix.context_id]
                found.filled.set()
            raise
        found.filled.set()
        if not prefix.goes_on:
            self._tell(self._now_in_kv(prefix.context_id, *prefix.ancestors), ())
        return found

    async def _compute(self, prefix: Prefix) -> None:
        """Computes the KV, in one fill with that of the contexts it begins with that have none yet: a fill
        for each would take a step for each.
        """
        await self._backend.fill(
            (),
            prefix.context_id,
            priority=prefix.priority,
            step_ms=prefix.step_ms,
            ahead=prefix.ahead,
            ancestors=[name for name in prefix.ancestors if not self._backend.holds(name)],
        )

    def _now_in_kv(self, context_id: str, *ancestors: str) -> list[str]:
        """Notes whose KV is there; returns of whom that is news."""
        self._contexts[context_id].in_kv = True
        news = [
            name
            for name in ancestors
            if name in self._contexts and not self._contexts[name].in_kv and self._backend.holds(name)
        ]
        for name in news:
            self._contexts[name].in_kv = True
        return [*news, context_id]

    async def _expect(self, prefix: Prefix) -> None:
        if prefix.steps_to_next_use is not None:
            use = engine_pb2.ContextUse(
                context_id=prefix.context_id, steps_to_next_use=prefix.steps_to_next_use
            )
            await self.expect((use,))

    async def _free(self, context_ids: Sequence[str]) -> None:
        """Frees those of them that nobody uses now."""
        gone = []
        for context_id in context_ids:
            found = self._contexts.get(context_id)
            if found is None or found.users or not found.filled.is_set():
                continue
            del self._contexts[context_id]
            gone.append(context_id)
            await self._backend.free_context(context_id)
        self._tell((), gone)

    def _tell(self, changed: Sequence[str], gone: Sequence[str]) -> None:
        if changed or gone:
            contexts = [self._message(name, self._contexts[name]) for name in changed]
            event = engine_pb2.ContextsChanged(contexts=contexts, gone=gone)
            self._report(engine_pb2.AttachRequest(contexts=event))

    def _message(self, context_id: str, found: _Shared) -> engine_pb2.SharedContext:
        return engine_pb2.SharedContext(
            context_id=context_id, prefix_hash=found.prefix_hash, tokens=found.tokens, in_kv=found.in_kv
        )
