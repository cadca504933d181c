"""What the simulated model writes, and which prompts it remembers. Nothing here knows the time."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from parrot_engine.text.byte_tokens import EOS_ID

_TEXT: Final = (
    "the a of and to in is that it for on with as was at by from are this be an or which one all there "
    "harbour parrot lighthouse river garden letter window morning evening winter council market bridge "
    "engine ledger island captain teacher weather question answer story house street "
    "opens closes carries finds remembers writes describes follows explains keeps begins returns "
    "small old bright quiet early narrow distant careful ordinary green "
    "café naïve façade Zürich smörgås 港 灯台 мост αυγή 🦜 “quoted” … "
)
WORDS: Final = _TEXT.split()
"""Words of one to four bytes a character, so that offsets in bytes and in characters differ."""

SHORTEST_WORDS: Final = 12
LONGEST_WORDS: Final = 72


def write(prompt: Sequence[int], seed: int) -> Iterator[int]:
    """The tokens the model writes after `prompt`, for ever; each end it would make is an `EOS_ID`.

    The same prompt and seed give the same tokens, on any machine.
    """
    digest = hashlib.blake2b(
        array("I", prompt).tobytes(), digest_size=16, key=seed.to_bytes(8, "big")
    ).digest()
    for part in itertools.count():
        yield from _paragraph(digest, part)
        yield EOS_ID


def _paragraph(digest: bytes, part: int) -> Iterator[int]:
    length = SHORTEST_WORDS + _draw(digest, part, 0) % (LONGEST_WORDS - SHORTEST_WORDS + 1)
    for place in range(1, length + 1):
        number = _draw(digest, part, place)
        word = WORDS[number % len(WORDS)]
        end = "." if place == length or number >> 32 & 7 == 0 else ""
        yield from f"{'' if part == 0 and place == 1 else ' '}{word}{end}".encode()


def _draw(digest: bytes, part: int, place: int) -> int:
    return int.from_bytes(hashlib.blake2b(b"%d %d" % (part, place), digest_size=8, key=digest).digest())


class PrefixCache:
    """Which blocks of tokens have their KV: least recently used ones go first."""

    def __init__(self, kv_tokens: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._capacity = kv_tokens // block_tokens
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def hit_tokens(self, tokens: Sequence[int]) -> int:
        """How many tokens of a prompt need no prefill. The last one always does: it is generated from."""
        hit = 0
        for block in self._chain(tokens[:-1]):
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            hit += self._block_tokens
        return hit

    def add(self, tokens: Sequence[int]) -> None:
        """Remembers the whole blocks of `tokens`."""
        for block in self._chain(tokens):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def _chain(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """A name for each whole block, which says everything before it too."""
        data = array("I", tokens).tobytes()
        size = self._block_tokens * array("I").itemsize
        name = b""
        for start in range(0, len(data) - size + 1, size):
            name = hashlib.blake2b(name + data[start : start + size], digest_size=16).digest()
            yield name
