"""vLLM's scheduler over a toy model: KV is the tokens themselves, so each step can check what it reads.

The model's next token is a function of all tokens before it. A step reads a request's tokens out of
the KV memory, block by block, as attention would: a block that was given away too early, copied too
late or taken from another context shows at once.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from parrot_engine.backends.vllm.wire import Books, Errand

BLOCK_TOKENS: Final = 4
WINDOW: Final = 64
STEP_TOKENS: Final = 24
SEQUENCES: Final = 6
VOCAB: Final = 50
STOP: Final = 0
"""The token that ends an output."""


def next_token(tokens: list[int]) -> int:
    """What the toy model says after `tokens`."""
    digest = hashlib.blake2b(bytes(tokens), digest_size=2).digest()
    return int.from_bytes(digest, "big") % VOCAB


def continuation(tokens: list[int], count: int) -> list[int]:
    """What the toy model generates after `tokens`: `count` tokens, or up to the one that ends it."""
    out: list[int] = []
    while len(out) < count and STOP not in out:
        out.append(next_token(tokens + out))
    return out


@dataclass
class ToyWorker:
    """The KV memory, and what a worker knows of its requests."""

    blocks: int
    memory: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)

    def execute(self, output: Any) -> Any:
        """Computes a step."""
        from vllm.v1.outputs import ModelRunnerOutput

        for request_id in output.finished_req_ids:
            self.tokens.pop(request_id, None)
            self.tables.pop(request_id, None)
        for copy in output.kv_cache_block_copies or ():
            self._copy(copy.src_block_id, copy.dst_block_id)
        starts = self._take_requests(output)
        sampled = []
        for request_id, count in output.num_scheduled_tokens.items():
            sampled.append(self._advance(request_id, starts[request_id], count))
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)

    def _copy(self, source: int, target: int) -> None:
        for slot in range(BLOCK_TOKENS):
            if (source, slot) in self.memory:
                self.memory[target, slot] = self.memory[source, slot]

    def _take_requests(self, output: Any) -> dict[str, int]:
        """Notes new requests and blocks; returns where each request's step starts."""
        starts = {}
        for new in output.scheduled_new_reqs:
            known = self.tokens.get(new.req_id) or list(new.prefill_token_ids or new.prompt_token_ids)
            self.tokens[new.req_id] = known
            self.tables[new.req_id] = list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                self.tables[name] = []
            self.tables[name] += blocks[0] if blocks else []
            starts[name] = cached.num_computed_tokens[index]
        return starts

    def _advance(self, name: str, start: int, count: int) -> list[int]:
        tokens, table = self.tokens[name], self.tables[name]
        end = start + count
        for position in range(start, end):
            self.memory[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = tokens[position]
        read = [self.memory.get((table[at // BLOCK_TOKENS], at % BLOCK_TOKENS), -1) for at in range(end)]
        assert read == tokens[:end], f"{name} reads KV that is not its own at {end}"
        if end < len(tokens):
            return []
        tokens.append(next_token(tokens))
        return [tokens[-1]]


class ToyEngine:
    """A scheduler, and steps of which as many are under way at once as vLLM would have.

    Args:
        blocks: of the KV memory, vLLM's own null block included.
        ahead: vLLM schedules a step while the one before is computed.
    """

    def __init__(self, config: Any, blocks: int, *, ahead: bool) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.structured_output import StructuredOutputManager

        from parrot_engine.backends.vllm.scheduler import AsyncContextScheduler, ContextScheduler

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        config.scheduler_config.async_scheduling = ahead
        config.cache_config.num_gpu_blocks = blocks
        made = AsyncContextScheduler if ahead else ContextScheduler
        self.scheduler = made(
            vllm_config=config,
            kv_cache_config=_kv_config(blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.worker = ToyWorker(blocks)
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.dropped: list[str] = []
        self._ahead = ahead
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._ids = itertools.count()

    def submit(self, prompt: list[int], errand: Errand, max_tokens: int, priority: int = 0) -> str:
        """Sends a request; returns its id."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        name = f"r{next(self._ids)}"
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            stop_token_ids=None if errand.fill else [STOP],
            extra_args=errand.to_wire(),
            skip_reading_prefix_cache=None if errand.cache else True,
        )
        request = Request(
            name, prompt, params, None, priority=priority, block_hasher=self._hasher, arrival_time=len(name)
        )
        self.outputs[name] = []
        self.scheduler.add_request(request)
        return name

    def cancel(self, name: str) -> None:
        """Takes a request out."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.finished[name] = "abort"

    def step(self) -> None:
        """What vLLM's engine does in one turn of its loop."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._under_way.append((output, self.worker.execute(output)))
        if self._under_way and (not self._ahead or len(self._under_way) > 1 or self.idle):
            self._take(*self._under_way.popleft())

    @property
    def idle(self) -> bool:
        """No request is left."""
        return not self.scheduler.has_requests()

    def run(self, steps: int = 2000) -> None:
        """Steps until nothing is left to do; fails if that takes more than `steps`."""
        for _ in range(steps):
            if self.idle and not self._under_way:
                return
            self.step()
        waiting = list(self.scheduler.requests)
        raise AssertionError(f"after {steps} steps there is no end in sight; {waiting} wait")

    def _take(self, output: Any, result: Any) -> None:
        for batch in self.scheduler.update_from_output(output, result).values():
            books = Books.of(batch.scheduler_stats and batch.scheduler_stats.kv_connector_stats)
            self.dropped += books.dropped if books else []
            for piece in batch.outputs:
                self.outputs[piece.request_id] += piece.new_token_ids
                if piece.prefill_stats is not None:
                    self.cached[piece.request_id] = piece.prefill_stats.num_cached_tokens
                if piece.finish_reason is not None:
                    self.finished[piece.request_id] = str(piece.finish_reason)


def _kv_config(blocks: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])


Make = Callable[[int], ToyEngine]
"""Makes engines with as many blocks of KV as wanted."""


def numbers(count: int, seed: int = 1) -> list[int]:
    """Tokens, none of which ends an output."""
    source = random.Random(seed)
    return [source.randrange(1, VOCAB) for _ in range(count)]


def check(engine: ToyEngine) -> None:
    books = engine.scheduler.audit()
    assert books.faults == []
    assert engine.scheduler.books().fault == ""
