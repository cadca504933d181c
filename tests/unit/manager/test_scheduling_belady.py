"""What stays in KV, against Belady's optimum, which knows every later use, on recorded traces.

A request's prompt is a chain of blocks; what of it is not in KV, in one piece from the start, is computed
again. The memory lets go as an engine does: first, least recently used, of what nobody asked to keep; then of
what is kept, furthest from its next use first, as the manager reckons it.
"""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict
from collections.abc import Container, Iterator
from itertools import islice
from pathlib import Path

import pytest
from tests.support.fleet import call, prefix

from parrot_manager.core.prefixes import Prefix
from parrot_manager.core.scheduling import QueuedCall
from parrot_manager.core.scheduling.uses import NEVER, Uses

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
REQUESTS = 2_000
BLOCK_TOKENS = 512
Chain = list[str]

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the recorded traces are not there: {TRACES}")


def recorded(name: str) -> list[Chain]:
    """The blocks of a trace's requests."""
    with (TRACES / name).open() as lines:
        return [list(map(str, json.loads(line)["hash_ids"])) for line in islice(lines, REQUESTS)]


def belady(requests: list[Chain], blocks: int) -> int:
    """Blocks computed again when the one whose next use is last goes first."""
    later: dict[str, int] = {}
    uses: list[list[int]] = []
    for place in reversed(range(len(requests))):
        uses.append([later.get(name, len(requests)) for name in requests[place]])
        later.update(dict.fromkeys(requests[place], place))
    kept: dict[str, int] = {}
    heap: list[tuple[int, str]] = []
    computed = 0
    for chain, following in zip(requests, reversed(uses), strict=True):
        computed += len(chain) - held(chain, kept)
        for name, use in zip(chain, following, strict=True):
            kept[name] = use
            heapq.heappush(heap, (-use, name))
        while len(kept) > blocks:
            use, name = heapq.heappop(heap)
            if kept.get(name) == -use:
                del kept[name]
    return computed


class Memory:
    """KV that is kept as the manager says."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._uses = Uses()
        self._cached: OrderedDict[str, None] = OrderedDict()
        self._kept: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._clock = 0
        self.computed = 0

    def run(self, chain: Chain) -> None:
        """A request computes what is not there."""
        self.computed += len(chain) - held(chain, self._cached.keys() | self._kept.keys())
        self._uses.used(as_call(chain, self._clock))
        # A prompt's end goes before its beginning.
        for name in reversed(chain):
            self._clock += 1
            self._keep(name)
        while len(self._cached) + len(self._kept) > self._blocks:
            self._let_go()

    def _keep(self, name: str) -> None:
        steps = self._uses.steps(name, 1)
        self._cached.pop(name, None)
        self._kept.pop(name, None)
        if steps == NEVER:
            self._cached[name] = None
        else:
            self._kept[name] = steps
            heapq.heappush(self._heap, (-steps, self._clock, name))

    def _let_go(self) -> None:
        if self._cached:
            self._cached.popitem(last=False)
            return
        steps, _, name = heapq.heappop(self._heap)
        if self._kept.get(name) == -steps:
            del self._kept[name]


def held(chain: Chain, kept: Container[str]) -> int:
    """How many first blocks are there."""
    found = 0
    while found < len(chain) and chain[found] in kept:
        found += 1
    return found


def as_call(chain: Chain, number: int) -> QueuedCall:
    """A request as the manager sees it: every one a session of its own."""
    return call(f"s{number}", prefixes=prefixes(chain))


def prefixes(chain: Chain) -> Iterator[Prefix]:
    """Its prefixes."""
    for pieces, name in enumerate(chain, 1):
        yield prefix(name, pieces * BLOCK_TOKENS, pieces=pieces)


@needs_traces
@pytest.mark.parametrize("blocks", [1_000, 3_000, 10_000])
@pytest.mark.parametrize("trace", ["mooncake_conversation_first30min.jsonl", "mooncake_synthetic.jsonl"])
def test_no_more_than_a_third_is_computed_again_that_belady_would_keep(trace: str, blocks: int) -> None:
    requests = recorded(trace)
    memory = Memory(blocks)
    for chain in requests:
        memory.run(chain)
    least = belady(requests, blocks)
    ratio = memory.computed / least
    assert 1 <= ratio <= 1.3, f"{ratio:.3f} times the optimum's {least * BLOCK_TOKENS:,} tokens"
