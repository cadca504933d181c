"""The requests that decode, in an order in which those with a common beginning stand side by side.

It is kept from step to step: a request that begins to decode, or ceases to, is all that changes it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Set
from typing import Any, Final

import numpy as np

from parrot_engine.backends.vllm.arguments import OWN_ATTENTION
from parrot_engine.backends.vllm.held import common_prefix
from parrot_kernels.vllm_backend.tree import Tree

KEY: Final = "parrot_tree"
"""Where a step's `Tree` travels in vLLM's `SchedulerOutput`."""


def known_forest(config: Any, manager: Any) -> DecodingForest | None:
    """The forest of a scheduler; None: nobody asks for it, for attention is not planned in this process.

    Args:
        config: vLLM's.
        manager: vLLM's `KVCacheManager`, of one group.
    """
    backend = getattr(config.attention_config.backend, "name", "")
    if backend != OWN_ATTENTION or config.device_config.device_type != "cpu":
        return None
    return DecodingForest(lambda name: manager.get_block_ids(name)[0])


class DecodingForest:
    """The forest of the requests that decode.

    A request goes on in blocks of its own, so what two have in common does not change while both decode.
    Blocks are looked at when a request begins, and again when another one begins that may go on from them.
    """

    def __init__(self, blocks_of: Callable[[str], list[int]]) -> None:
        """Args:
        blocks_of: of a request, the numbers of its blocks, in order.
        """
        self._blocks_of = blocks_of
        self._decoding: set[str] = set()
        self._names: list[str] = []
        self._blocks: list[list[int]] = []
        self._shared: list[int] = []
        self._tree = Tree((), np.zeros(0, np.int32))

    def tell(self, output: Any) -> None:
        """Sends a step's tree along with it: requests decode that have one token to compute."""
        counts: Mapping[str, int] = output.num_scheduled_tokens
        tree = self.step({name for name, count in counts.items() if count == 1})
        setattr(output, KEY, tree)

    def step(self, decoding: Set[str]) -> Tree:
        """The tree of a step in which these requests decode."""
        gone, new = self._decoding - decoding, decoding - self._decoding
        for name in gone:
            self._remove(name)
        for name in new:
            self._add(name)
        if gone or new:
            self._decoding = set(decoding)
            self._tree = Tree(tuple(self._names), np.array(self._shared, np.int32))
        return self._tree

    def _add(self, name: str) -> None:
        blocks = list(self._blocks_of(name))
        for other in self._begun_like(blocks):
            self._remove(other)
            self._put(other, list(self._blocks_of(other)))
        self._put(name, blocks)

    def _begun_like(self, blocks: list[int]) -> list[str]:
        """The requests all of whose blocks, as they are known, these begin with: they may share newer ones.

        A block stands at one place, so where two have it in common, they have all before it.
        """
        return [
            name
            for name, known in zip(self._names, self._blocks, strict=True)
            if blocks[len(known) - 1 : len(known)] == known[-1:]
        ]

    def _put(self, name: str, blocks: list[int]) -> None:
        place = bisect(self._blocks, blocks)
        self._names.insert(place, name)
        self._blocks.insert(place, blocks)
        self._shared.insert(place, self._common(place))
        if place + 1 < len(self._names):
            self._shared[place + 1] = self._common(place + 1)

    def _remove(self, name: str) -> None:
        place = self._names.index(name)
        for column in (self._names, self._blocks, self._shared):
            del column[place]
        if place < len(self._names):
            self._shared[place] = self._common(place)

    def _common(self, place: int) -> int:
        if not place:
            return 0
        before, here = self._blocks[place - 1 : place + 1]
        return common_prefix(before, here, len(here))
