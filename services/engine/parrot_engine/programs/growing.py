"""The tokens of a value that is still growing, encoded off the event loop where that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from parrot_engine.programs.script import INLINE_CHARS
from parrot_engine.text.incremental import IncrementalEncoder


@dataclass(slots=True)
class GrowingValue:
    """One value on its way.

    Attributes:
        token_ids: those that are sure, which are all of them after `finish`.
    """

    encoder: IncrementalEncoder
    token_ids: list[int] = field(default_factory=list)
    _unsure_chars: int = 0

    async def push(self, text: str) -> list[int]:
        """Takes the text that comes next; returns the tokens that became sure."""
        added = await encoded(self.encoder.push, text)
        self._unsure_chars = len(text) if added else self._unsure_chars + len(text)
        self.token_ids += added
        return added

    async def finish(self) -> list[int]:
        """The value has ended; returns the rest of its tokens."""
        if self._unsure_chars <= INLINE_CHARS:
            rest = self.encoder.finish()
        else:
            rest = await asyncio.to_thread(self.encoder.finish)
        self.token_ids += rest
        return rest


async def encoded(encode: Callable[[str], list[int]], text: str) -> list[int]:
    """`encode(text)`, off the event loop if that takes long."""
    return encode(text) if len(text) <= INLINE_CHARS else await asyncio.to_thread(encode, text)
