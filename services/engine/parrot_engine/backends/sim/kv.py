"""The simulated KV memory: blocks that requests use, contexts hold, and a cache remembers.

A block has owners: requests in the batch, and contexts that hold it. One that has none is free; it
keeps its name, and with it its use as a cache, until it is taken again. Free blocks are taken least
recently used first, and then what is held is let go of: all KV is soft.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parrot_engine.backends.base import IntegrityError, KvAudit


@dataclass(slots=True, eq=False)
class KvRequest:
    """What one fill or generate has in the memory.

    Attributes:
        tokens: its prompt, and behind it what it generated.
        parent_id: the context whose held KV it may begin from, besides its own.
        public_tokens: those before the first private one; the rest are `tenant`'s.
        reads_cache: False: it begins from no KV but what is held for its context or the parent.
        recomputes: it begins from no KV at all.
        computed: tokens whose KV is there, from the first on; they are in `blocks`.
        names: of the whole blocks of `tokens`, as far as they are needed.
    """

    context_id: str
    parent_id: str
    tokens: array[int]
    public_tokens: int
    tenant: str
    reads_cache: bool = True
    recomputes: bool = False
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Held:
    tokens: array[int]
    public_tokens: int
    tenant: str
    blocks: list[int]
    names: list[bytes]


class KvMemory:
    """A pool of `total_blocks` blocks of `block_tokens` tokens each."""

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self._total = total_blocks
        self._size = block_tokens
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total_blocks))
        self._names: dict[int, bytes] = {}
        self._cached: dict[bytes, int] = {}
        self._request_owners = [0] * total_blocks
        self._held_owners = [0] * total_blocks
        self._in_requests = 0
        self._in_held = 0
        self._requests: dict[KvRequest, None] = {}
        self._held: OrderedDict[str, _Held] = OrderedDict()
        """Least recently used first."""
        self._steps_to_use: dict[str, float] = {}

    @property
    def free_tokens(self) -> int:
        """What fits without letting go of anything held."""
        return len(self._free) * self._size

    @property
    def held_tokens(self) -> int:
        """What held blocks take, shared ones once."""
        return self._in_held * self._size

    @property
    def used_fraction(self) -> float:
        return 1 - len(self._free) / self._total

    def begin(self, request: KvRequest, chunk_tokens: int) -> bool:
        """Lets a request begin from the KV that is there, with room for `chunk_tokens` more.

        Returns False, and changes nothing for the request, when there is no room.
        """
        found, blocks = self._find(request)
        whole = found // self._size
        # The tail of what is held is copied: its own block is kept until the copy has one.
        for kept, computed in ((len(blocks), found), (whole, whole * self._size)):
            self._own(request, blocks[:kept])
            ends = min(computed + chunk_tokens, len(request.tokens))
            if self._take(request, self._blocks_for(ends) - whole):
                self._disown(request.blocks[whole:kept])
                del request.blocks[whole:kept]
                request.computed = computed
                self._requests[request] = None
                return True
            self._disown(request.blocks)
            request.blocks.clear()
        return False

    def grow(self, request: KvRequest, tokens: int) -> bool:
        """Makes room for the KV of a request's first `tokens` tokens; False: there is none."""
        return self._take(request, self._blocks_for(tokens) - len(request.blocks))

    def compute(self, request: KvRequest, tokens: int) -> None:
        """Notes that the KV of a request's first `tokens` tokens is there; whole blocks are cached."""
        first, request.computed = request.computed // self._size, tokens
        for place in range(first, tokens // self._size):
            if place == len(request.names):
                request.names.append(self._name(request, place))
            self._remember(request.names[place], request.blocks[place])

    def end(self, request: KvRequest, *, hold: bool = False) -> None:
        """Takes a request out; with `hold`, its context holds what was computed from here on."""
        self._requests.pop(request, None)
        if hold:
            blocks = request.blocks[: self._blocks_for(request.computed)]
            self._change(self._held_owners, blocks, 1)
            self.release(request.context_id)
            self._held[request.context_id] = _Held(
                request.tokens[: request.computed],
                request.public_tokens,
                request.tenant,
                blocks,
                request.names[: request.computed // self._size],
            )
        self._disown(request.blocks)
        request.blocks = []
        request.computed = 0

    def hold_beginning(self, context_id: str, of: str, length: int) -> bool:
        """Holds the first tokens of what another context holds; False: they are not there any more."""
        whole = self._held.get(of)
        if whole is None or not 0 < length <= len(whole.tokens):
            return False
        blocks = whole.blocks[: self._blocks_for(length)]
        self._change(self._held_owners, blocks, 1)
        self.release(context_id)
        self._held[context_id] = _Held(
            whole.tokens[:length],
            min(whole.public_tokens, length),
            whole.tenant if whole.public_tokens < length else "",
            blocks,
            whole.names[: length // self._size],
        )
        return True

    def holds(self, context_id: str, tokens: array[int]) -> bool:
        """Whether the KV of all of `tokens` is held for a context; counts as a use if so."""
        held = self._held.get(context_id)
        if held is None or held.tokens[: len(tokens)] != tokens:
            return False
        self._held.move_to_end(context_id)
        return True

    def holds_any(self, context_id: str) -> bool:
        """Whether KV is held for a context; no use of it."""
        return context_id in self._held

    def release(self, context_id: str) -> None:
        """Holds a context's KV no longer."""
        held = self._held.pop(context_id, None)
        if held is not None:
            self._change(self._held_owners, held.blocks, -1)
            self._set_free(held.blocks)

    def expect_use(self, context_id: str, steps: float) -> None:
        """Notes when a context will be used, for as long as it is not forgotten."""
        self._steps_to_use[context_id] = steps

    def forget(self, context_id: str) -> None:
        """Releases a context that is there no more."""
        self.release(context_id)
        self._steps_to_use.pop(context_id, None)

    def audit(self) -> KvAudit:
        """The books.

        Raises:
            IntegrityError: they do not add up.
        """
        self._check_owners("requests", self._request_owners, (one.blocks for one in self._requests))
        self._check_owners("held contexts", self._held_owners, (one.blocks for one in self._held.values()))
        self._check_free()
        self._check_names()
        return KvAudit(
            total_blocks=self._total,
            free_blocks=len(self._free),
            held_blocks=self._total - len(self._free) - self._in_requests,
            request_blocks=self._in_requests,
            held_contexts=tuple(self._held),
        )

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _find(self, request: KvRequest) -> tuple[int, list[int]]:
        """The longest beginning whose KV is there, and the blocks it is in; the last token never counts."""
        shared = {
            context_id: _shared_tokens(request, held)
            for context_id in (request.context_id, request.parent_id)
            if (held := self._held.get(context_id)) is not None
        }
        self._name_prompt(request, shared)
        if request.recomputes:
            return 0, []
        most = len(request.tokens) - 1
        found, blocks = self._find_cached(request, most) if request.reads_cache else (0, [])
        for context_id, tokens in shared.items():
            if min(most, tokens) > found:
                self._held.move_to_end(context_id)
                found = min(most, tokens)
                blocks = self._held[context_id].blocks[: self._blocks_for(found)]
        return found, blocks

    def _find_cached(self, request: KvRequest, most: int) -> tuple[int, list[int]]:
        blocks: list[int] = []
        for name in request.names[: most // self._size]:
            block = self._cached.get(name)
            if block is None:
                break
            blocks.append(block)
        return len(blocks) * self._size, blocks

    def _take(self, request: KvRequest, count: int) -> bool:
        """Gives a request `count` more blocks, or none and False."""
        if count <= 0:
            return True
        if count > self._total - self._in_requests:
            return False
        while len(self._free) < count:
            self.release(self._used_last())
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget_name(block)
        self._own(request, taken)
        return True

    def _used_last(self) -> str:
        """The held context to let go of first."""
        return max(self._held, key=lambda context_id: self._steps_to_use.get(context_id, 0.0))

    def _own(self, request: KvRequest, blocks: Sequence[int]) -> None:
        self._change(self._request_owners, blocks, 1)
        for block in blocks:
            self._free.pop(block, None)
        request.blocks.extend(blocks)

    def _disown(self, blocks: Sequence[int]) -> None:
        self._change(self._request_owners, blocks, -1)
        self._set_free(blocks)

    def _change(self, owners: list[int], blocks: Iterable[int], by: int) -> None:
        changed = 0
        for block in blocks:
            owners[block] += by
            changed += owners[block] == max(by, 0)
        if owners is self._request_owners:
            self._in_requests += by * changed
        else:
            self._in_held += by * changed

    def _set_free(self, blocks: Sequence[int]) -> None:
        """Frees those nobody owns: a prompt's end is taken before its beginning, what is no cache first."""
        for block in reversed(blocks):
            if not self._request_owners[block] and not self._held_owners[block]:
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._names)

    def _name_prompt(self, request: KvRequest, shared: Mapping[str, int]) -> None:
        """Names a request's blocks; what it shares with held contexts has its names already."""
        for context_id, tokens in shared.items():
            held, named = self._held[context_id], tokens
            if request.tenant and request.public_tokens != held.public_tokens:
                named = min(named, request.public_tokens, held.public_tokens)
            if named // self._size > len(request.names):
                request.names = held.names[: named // self._size]
        for place in range(len(request.names), len(request.tokens) // self._size):
            request.names.append(self._name(request, place))

    def _name(self, request: KvRequest, place: int) -> bytes:
        """A block's name says all tokens up to its end, and whose they are if any is private."""
        ends = (place + 1) * self._size
        before = request.names[place - 1] if place else b""
        tenant = request.tenant if ends > request.public_tokens else ""
        data = request.tokens[ends - self._size : ends].tobytes()
        return hashlib.blake2b(before + data + tenant.encode(), digest_size=16).digest()

    def _remember(self, name: bytes, block: int) -> None:
        if name not in self._cached:
            self._cached[name] = block
            self._names[block] = name

    def _forget_name(self, block: int) -> None:
        name = self._names.pop(block, None)
        if name is not None:
            del self._cached[name]

    def _check_owners(self, what: str, owners: list[int], owned: Iterable[list[int]]) -> None:
        counted = Counter(block for blocks in owned for block in blocks)
        for block, count in enumerate(owners):
            if count != counted[block]:
                raise IntegrityError(
                    f"block {block} counts {count} owners among {what}, and {counted[block]} own it"
                )

    def _check_free(self) -> None:
        for block in range(self._total):
            owned = self._request_owners[block] + self._held_owners[block]
            if (block in self._free) != (owned == 0):
                raise IntegrityError(
                    f"block {block} has {owned} owners and is {'free' if block in self._free else 'not free'}"
                )
        for what, count, owners in (
            ("requests", self._in_requests, self._request_owners),
            ("held contexts", self._in_held, self._held_owners),
        ):
            if count != sum(map(bool, owners)):
                raise IntegrityError(f"{what} count {count} blocks and own {sum(map(bool, owners))}")

    def _check_names(self) -> None:
        if {name: block for block, name in self._names.items()} != self._cached:
            raise IntegrityError("the names of blocks and the cache of names differ")


def _shared_tokens(request: KvRequest, held: _Held) -> int:
    """How many first tokens a request shares with a held context, and may know that it does."""
    most = min(len(request.tokens), len(held.tokens))
    if request.tenant != held.tenant:
        most = min(most, request.public_tokens, held.public_tokens)
    left, right = request.tokens, held.tokens
    if left[:most] == right[:most]:
        return most
    return bisect_left(range(1, most + 1), True, key=lambda count: left[:count] != right[:count])
