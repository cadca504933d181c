"""Which engine a client's request goes to, when there are several: what a client can know, and no more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CHUNK_CHARS: Final = 128
"""About a block of 32 tokens of English."""
MATCH_SHARE: Final = 0.3
"""A prefix counts when it is so much of the prompt; SGLang's default (`--cache-threshold`)."""
BALANCE_REQUESTS: Final = 16
"""By so many requests the loads may differ before they decide alone. SGLang's default is 64, for engines
whose batches are in the hundreds; this is a batch of the engines here."""
BALANCE_TIMES: Final = 1.5
"""And so many times the smaller one; SGLang's default (`--balance-rel-threshold`)."""
KNOWN_CHUNKS: Final = 100_000
"""Remembered of each engine, the latest: about 3 million tokens. What an engine still holds of them a client
does not know, and this bounds its own memory alone, as SGLang's `--max-tree-size` does."""


class Router(ABC):
    """Places requests on engines, which it numbers from 0."""

    def __init__(self, engines: int) -> None:
        self.open = [0] * engines

    @contextmanager
    def placed(self, prompt: str) -> Iterator[int]:
        """The engine for a prompt, whose request is open while the `with` lasts."""
        engine = self.choose(prompt)
        self.open[engine] += 1
        try:
            yield engine
        finally:
            self.open[engine] -= 1

    @abstractmethod
    def choose(self, prompt: str) -> int:
        """The engine for a prompt."""


class LeastBusy(Router):
    """The one with the fewest open requests; among equals, by turns."""

    def __init__(self, engines: int) -> None:
        super().__init__(engines)
        self._last = -1

    def choose(self, prompt: str) -> int:
        """The engine for a prompt."""
        count = len(self.open)
        turns = [(self._last + step) % count for step in range(1, count + 1)]
        self._last = min(turns, key=self.open.__getitem__)
        return self._last


class RoundRobin(Router):
    """One after the other, whatever they do."""

    def __init__(self, engines: int) -> None:
        super().__init__(engines)
        self._next = 0

    def choose(self, prompt: str) -> int:
        """The engine for a prompt."""
        engine, self._next = self._next, (self._next + 1) % len(self.open)
        return engine


class PrefixAware(Router):
    """The engine that was sent the longest prefix of the prompt; the least busy where none counts.

    The rule is that of SGLang's router (`cache_aware`, https://github.com/sgl-project/sglang, sgl-router): a
    prefix decides when it is long enough and the loads are balanced, else the load does. Prefixes are
    known by hashes of chunks, each over all before it, as in llm-d's scheduler
    (https://github.com/llm-d/llm-d-inference-scheduler, `prefix-cache-scorer`).
    """

    def __init__(self, engines: int, known_chunks: int = KNOWN_CHUNKS) -> None:
        super().__init__(engines)
        self._known_chunks = known_chunks
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(engines)]

    def choose(self, prompt: str) -> int:
        """The engine for a prompt, which it is known to have from now on."""
        chunks = _chunks(prompt)
        engine = self._place(chunks, len(prompt))
        self._note(engine, chunks)
        return engine

    def _place(self, chunks: list[int], chars: int) -> int:
        engines = list(range(len(self.open)))
        matched = [self._matched(engine, chunks) for engine in engines]
        longest = max(matched)
        if self._balanced() and longest and longest * CHUNK_CHARS >= MATCH_SHARE * chars:
            engines = [engine for engine in engines if matched[engine] == longest]
        return min(engines, key=lambda engine: (self.open[engine], len(self._known[engine])))

    def _balanced(self) -> bool:
        low, high = min(self.open), max(self.open)
        return high - low <= BALANCE_REQUESTS or high <= BALANCE_TIMES * low

    def _matched(self, engine: int, chunks: list[int]) -> int:
        known = self._known[engine]
        for place, chunk in enumerate(chunks):
            if chunk not in known:
                return place
        return len(chunks)

    def _note(self, engine: int, chunks: list[int]) -> None:
        known = self._known[engine]
        # The last first: what is forgotten first is then the end of a prefix, which is of no use alone.
        for chunk in reversed(chunks):
            known[chunk] = None
            known.move_to_end(chunk)
        while len(known) > self._known_chunks:
            known.popitem(last=False)


def _chunks(prompt: str) -> list[int]:
    """Hashes of the prompt's whole chunks, each over everything before it too."""
    found: list[int] = []
    before = 0
    for start in range(0, len(prompt) - CHUNK_CHARS + 1, CHUNK_CHARS):
        before = hash((before, prompt[start : start + CHUNK_CHARS]))
        found.append(before)
    return found
