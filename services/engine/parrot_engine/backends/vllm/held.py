"""The KV that is held for contexts: blocks of vLLM's pool with one more owner.

What is held is never trusted by name: the tokens are kept with the blocks, and KV is used for the
longest common prefix of those tokens and a request's, to the token. So whatever the other process
believes about a context can be out of date without harm.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

HELD_S: Final = 300.0
"""How long KV stays held for a client that is not heard of."""
EXPIRY_S: Final = 1.0
"""How often it is looked for what to drop for that reason."""


@dataclass(slots=True, eq=False)
class Held:
    """One context's held KV.

    Attributes:
        tokens: whose KV it is, all of it computed.
        blocks: vLLM's `KVCacheBlock`s, in order; the last may be partly filled.
        steps: in how many steps of its application it will be used next.
        used: grows with each use.
    """

    context_id: str
    client: str
    tokens: Sequence[int]
    blocks: list[Any]
    tenant: str
    public_tokens: int
    steps: float
    deadline: float
    used: int

    def shown_to(self, tenant: str) -> int:
        """How many of its tokens the KV may be used of, for that tenant."""
        return len(self.tokens) if self.tenant in ("", tenant) else self.public_tokens


@dataclass(frozen=True, slots=True)
class Hit:
    """Held KV that a request can begin with: the first `tokens` tokens of `held`."""

    held: Held
    tokens: int


@dataclass(slots=True)
class _Shared:
    """A block that contexts hold."""

    holders: int = 0
    tokens: int = 0


@dataclass(slots=True)
class HeldContexts:
    """The book of what is held in a `BlockPool`.

    Holding touches a block once for each context that holds it, letting go frees it once: the pool's
    own count keeps a block as long as anyone needs it.
    """

    pool: Any
    block_tokens: int
    held_s: float = HELD_S
    clock: Callable[[], float] = time.monotonic
    _held: dict[str, Held] = field(default_factory=dict)
    _shared: dict[int, _Shared] = field(default_factory=dict)
    _tokens: int = 0
    _next_expiry: float = 0.0
    _dropped: list[str] = field(default_factory=list)
    _uses: Any = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, context_id: str) -> bool:
        return context_id in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    @property
    def blocks(self) -> int:
        """Blocks that are held, shared ones once."""
        return len(self._shared)

    @property
    def tokens(self) -> int:
        """Tokens in them."""
        return self._tokens

    def hold(
        self,
        context_id: str,
        tokens: Sequence[int],
        blocks: Sequence[Any],
        *,
        client: str = "",
        tenant: str = "",
        public_tokens: int = 0,
        steps: float = 0.0,
    ) -> None:
        """Holds `blocks`, which somebody owns now, in place of what was held for the context."""
        kept = list(blocks)
        self.pool.touch(kept)
        self._count(kept, len(tokens), 1)
        self.let_go((context_id,))
        self._held[context_id] = Held(
            context_id,
            client,
            tokens,
            kept,
            tenant,
            public_tokens,
            steps,
            self.clock() + self.held_s,
            next(self._uses),
        )

    def let_go(self, context_ids: Iterable[str]) -> None:
        """Holds these no longer; those that are not held are let go already."""
        for context_id in context_ids:
            held = self._held.pop(context_id, None)
            if held is not None:
                self._count(held.blocks, len(held.tokens), -1)
                # The tail first: a prefix is of more use than what follows it.
                self.pool.free_blocks(reversed(held.blocks))

    def best(self, context_ids: Iterable[str], tokens: Sequence[int], tenant: str) -> Hit | None:
        """The longest held prefix of `tokens` among these contexts, short of the whole by a token."""
        best: Hit | None = None
        for held in filter(None, map(self._held.get, context_ids)):
            length = min(len(tokens) - 1, held.shown_to(tenant))
            length = common_prefix(held.tokens, tokens, length)
            if length > (best.tokens if best else 0):
                best = Hit(held, length)
        return best

    def length(self, context_ids: Iterable[str]) -> int:
        """The tokens of the longest of these that are held."""
        return max((len(held.tokens) for held in map(self._held.get, context_ids) if held), default=0)

    def reclaimable(self, spared: Held | None) -> int:
        """Blocks that would come free if everything but `spared` were dropped."""
        kept = {block.block_id for block in spared.blocks} if spared else set()
        blocks = self.pool.blocks
        return sum(
            1
            for index, shared in self._shared.items()
            if blocks[index].ref_cnt == shared.holders and index not in kept
        )

    def use(self, held: Held) -> None:
        """Notes that it was used."""
        held.used, held.deadline = next(self._uses), self.clock() + self.held_s

    def expect_use(self, steps: Mapping[str, float]) -> None:
        """Notes when contexts will be used."""
        for context_id, expected in steps.items():
            if context_id in self._held:
                self._held[context_id].steps = expected

    def keep_alive(self, client: str) -> None:
        """Notes that a client was heard of."""
        deadline = self.clock() + self.held_s
        for held in self._held.values():
            if held.client == client:
                held.deadline = deadline

    def expire(self) -> None:
        """Drops what is held for clients that were not heard of."""
        now = self.clock()
        if now < self._next_expiry:
            return
        self._next_expiry = now + EXPIRY_S
        self._drop([held for held in self._held.values() if held.deadline < now])

    def make_room(self, spared: Held | None) -> bool:
        """Drops the context that is needed last and whose memory comes free; False: there is none.

        Args:
            spared: not this one.
        """
        order = sorted(self._held.values(), key=lambda held: (-held.steps, held.used))
        victims = [held for held in order if held is not spared]
        # One whose blocks others use too frees nothing, and costs nothing as long as they do.
        for frees in (self._frees_now, self._frees_with_others):
            for held in victims:
                if frees(held):
                    self._drop([held])
                    return True
        return False

    def drop(self, held: Held) -> None:
        """Lets go of one that nobody asked to let go of."""
        self._drop([held])

    def take_dropped(self) -> list[str]:
        """What was dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def note_lost(self, context_id: str) -> None:
        """Notes that a context is not held though it was asked for."""
        self._dropped.append(context_id)

    def _drop(self, victims: Sequence[Held]) -> None:
        names = [held.context_id for held in victims]
        self.let_go(names)
        self._dropped += names

    def _frees_now(self, held: Held) -> bool:
        return any(block.ref_cnt == 1 for block in held.blocks)

    def _frees_with_others(self, held: Held) -> bool:
        return any(block.ref_cnt == self._shared[block.block_id].holders for block in held.blocks)

    def _count(self, blocks: Sequence[Any], tokens: int, change: int) -> None:
        for index, block in enumerate(blocks):
            shared = self._shared.setdefault(block.block_id, _Shared())
            shared.holders += change
            filled = min(self.block_tokens, tokens - index * self.block_tokens)
            filled = max(shared.tokens, filled) if shared.holders else 0
            self._tokens += filled - shared.tokens
            shared.tokens = filled
            if not shared.holders:
                del self._shared[block.block_id]


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """Length of the common prefix of two sequences, `limit` at most."""
    low, high = 0, min(limit, len(left), len(right))
    if left[:high] == right[:high]:
        return high
    # Slices compare in C: a bisection beats a loop over tokens.
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
