"""vLLM's scheduler, holding contexts' KV. Imported in vLLM's engine process, by name.

A request says in its `Errand` which contexts it serves. It starts from the longest prefix whose KV
is held for them or cached, to the token: where that ends within a block, vLLM's copy-on-write of
partial hits copies the tail. When it finishes, its blocks stay held for its context. When a request
needs memory, what is held goes first, and vLLM's own preemption does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

from parrot_engine.backends.vllm import salts
from parrot_engine.backends.vllm.arguments import OWN_ATTENTION
from parrot_engine.backends.vllm.audit import PoolAudit, audit
from parrot_engine.backends.vllm.forest import known_forest
from parrot_engine.backends.vllm.grammar import Resumption
from parrot_engine.backends.vllm.held import Held, HeldContexts, Hit
from parrot_engine.backends.vllm.orphans import end_with_parent
from parrot_engine.backends.vllm.turns import Limit, Turns
from parrot_engine.backends.vllm.wire import Ancestor, Books, Errand

HELD_STATUSES: Final = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)

log = init_logger(__name__)


class ContextScheduler(Scheduler):  # type: ignore[misc]
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _check_kv_layout(self.kv_cache_config)
        self.contexts = HeldContexts(self.kv_cache_manager.block_pool, self.block_size)
        self._resumption = Resumption()
        self._hit: tuple[str, Hit] | None = None
        """The request that was looked up last, and the held KV it would begin with."""
        self.turns = Turns(int(self.scheduler_config.max_num_batched_tokens))
        self._fault = ""
        self._allocate = self.kv_cache_manager.allocate_slots
        # vLLM asks in several places of one long method; this is where all of them meet.
        self.kv_cache_manager.allocate_slots = self._allocate_or_make_room
        self.forest = known_forest(self.vllm_config, self.kv_cache_manager)
        end_with_parent()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Chooses what the next step computes."""
        self.contexts.expire()
        self.max_num_scheduled_tokens = self.turns.plan(self.requests.values(), self.current_step + 1)
        output = super().schedule(*args, **kwargs)
        if self.forest is not None:
            self.forest.tell(output)
        if not self.requests:
            self._check_idle()
        return output

    def add_request(self, request: Any) -> None:
        """Takes a request in."""
        errand = Errand.of(request)
        if errand is not None:
            held = self.contexts.length((errand.context_id, errand.kv_parent_id)) if errand.step_ms else 0
            limit = Limit(errand.step_ms, errand.beside_share, ahead=errand.ahead, held_tokens=held)
            self.turns.add(request.request_id, limit)
        super().add_request(request)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Takes a step's tokens."""
        self.turns.measure(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._resumption.explain(outputs)
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Adds the books, in a field that vLLM passes on as it is."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            stats.kv_connector_stats = self.books().to_wire()
        return stats

    def books(self) -> Books:
        """The KV memory as it is now; tells of what was dropped only once."""
        pool, pace = self.kv_cache_manager.block_pool, self.turns.pace
        return Books(
            free_blocks=pool.get_num_free_blocks(),
            total_blocks=pool.num_gpu_blocks - 1,
            held_blocks=self.contexts.blocks,
            held_tokens=self.contexts.tokens,
            step_ms=pace.decode_ms,
            token_ms=pace.token_ms,
            piece_token_ms=pace.piece_token_ms,
            dropped=self.contexts.take_dropped(),
            fault=self._fault,
        )

    def audit(self) -> PoolAudit:
        """Checks every block of the pool."""
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        owned: dict[str, Any] = {f"request {name}": blocks for name, blocks in manager.req_to_blocks.items()}
        for number, (_, blocks) in enumerate(self.deferred_frees):
            owned[f"deferred free {number}"] = blocks
        held = {context.context_id: context.blocks for context in self.contexts}
        return audit(self.kv_cache_manager.block_pool, owned, held)

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        cached = super()._get_local_prefix_cache_hit(request)
        self._hit = None
        hit = self._held_hit(request)
        if hit is None or hit.tokens <= cached[1]:
            return cached
        self._hit = request.request_id, hit
        self.contexts.use(hit.held)
        blocks = hit.held.blocks[: -(-hit.tokens // self.block_size)]
        return KVCacheBlocks((blocks,)), hit.tokens, 0, False

    def _held_hit(self, request: Any) -> Hit | None:
        errand = Errand.of(request)
        if errand is None or request.sampling_params.prompt_logprobs is not None:
            # The prompt's logarithms come out of computing it.
            return None
        names = (errand.context_id, errand.kv_parent_id)
        return self.contexts.best(names, request._all_token_ids, errand.tenant)

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        errand = Errand.of(request)
        if errand is not None and errand.hold and request.status in HELD_STATUSES:
            self._hold(request, errand)
        self._resumption.forget(request)
        self.turns.remove(request.request_id)
        return super()._free_request(request, delay_free_blocks)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Takes a running request's memory away.

        vLLM enters a step's blocks into the prefix cache when it gives them out. A request may be preempted
        after that in the same step, by one that goes before it: what it will now not compute must not stay
        in the cache as if it had been.
        """
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        fresh = blocks[request.num_computed_tokens // self.block_size :]
        self.kv_cache_manager.block_pool.evict_blocks({block.block_id for block in fresh})
        return super()._preempt_request(request, *args, **kwargs)

    def _hold(self, request: Any, errand: Errand) -> None:
        # Steps that are still under way count as computed; their tokens are placeholders.
        computed = request.num_computed_tokens - request.num_output_placeholders
        length = min(computed, request.num_prompt_tokens if errand.fill else request.num_tokens)
        own = Ancestor(errand.context_id, length, errand.tenant, errand.public_tokens, errand.steps)
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        for one in (*errand.ancestors, own):
            if not 0 < one.length <= length:
                # It ended while it was preempted: its KV is gone.
                self.contexts.note_lost(one.context_id)
                continue
            self.contexts.hold(
                one.context_id,
                request._all_token_ids[: one.length],
                blocks[: -(-one.length // self.block_size)],
                client=errand.client,
                tenant=one.tenant,
                public_tokens=one.public_tokens,
                steps=one.steps,
            )

    def _allocate_or_make_room(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """`KVCacheManager.allocate_slots`, which drops held contexts before it says no."""
        blocks = self._allocate(request, num_new_tokens, *args, **kwargs)
        if blocks is not None or not len(self.contexts):
            return blocks
        spared = self._spared(request)
        needed = self._blocks_needed(request, num_new_tokens, kwargs)
        if self.running and needed > self._blocks_to_have(spared):
            # What runs has to end, or to be preempted, first; until then what is held can stay.
            return None
        while blocks is None and self.contexts.make_room(spared):
            blocks = self._allocate(request, num_new_tokens, *args, **kwargs)
        if blocks is None and spared is not None and not self.running:
            # The KV it would begin with stands in its own way: without it, it fits at the next step.
            self.contexts.drop(spared)
        return blocks

    def _spared(self, request: Any) -> Held | None:
        """The context whose blocks the request is about to adopt."""
        if self._hit is None or self._hit[0] != request.request_id or request.num_computed_tokens:
            return None
        return self._hit[1].held

    def _blocks_needed(self, request: Any, num_new_tokens: int, asked: Mapping[str, Any]) -> int:
        """Blocks that vLLM wants to be free: for this step, or for all the tokens of one that starts."""
        own = len(self.kv_cache_manager.get_blocks(request.request_id).blocks[0])
        if request.status is RequestStatus.RUNNING:
            return int(-(-(request.num_computed_tokens + num_new_tokens) // self.block_size) - own)
        adopted = asked["new_computed_blocks"].blocks[0]
        shared = sum(1 for block in adopted if block.ref_cnt)
        copied = asked["num_new_computed_tokens"] % self.block_size != 0
        return int(-(-request.num_tokens // self.block_size) + copied - own - shared)

    def _blocks_to_have(self, spared: Held | None) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks()) + self.contexts.reclaimable(spared)

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        if self._resumption.refuses(request, Errand.of(request)):
            self.grammar_compile_error_reqs.add(request.request_id)
            return False
        return super()._handle_blocked_waiting_request(request) is True

    def _check_idle(self) -> None:
        """With no request left, what is not held must be free."""
        pool = self.kv_cache_manager.block_pool
        missing = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() - self.contexts.blocks
        waiting = sum(len(blocks) for _, blocks in self.deferred_frees)
        if missing > waiting and not self._fault:
            self._fault = f"{missing - waiting} blocks belong to nobody: " + "; ".join(self.audit().faults)
            log.error("The KV memory's books do not add up: %s", self._fault)


class AsyncContextScheduler(ContextScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same where vLLM schedules a step while the one before is still computed."""


def _check_kv_layout(config: Any) -> None:
    groups = config.kv_cache_groups
    if len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise ValueError(
            f"the model keeps its KV as {kinds or 'nothing'}; contexts need full attention in every layer"
        )


def free_contexts(core: Any, context_ids: list[str]) -> dict[str, Any]:
    """Holds these no longer; returns the books."""
    core.scheduler.contexts.let_go(context_ids)
    return dict(core.scheduler.books().to_wire())


def expect_use(core: Any, steps: dict[str, float]) -> None:
    """Notes in how many steps of their application contexts will be used."""
    core.scheduler.contexts.expect_use(steps)


def keep_alive(core: Any, client: str) -> None:
    """Notes that a client is there."""
    core.scheduler.contexts.keep_alive(client)


def audit_pool(core: Any) -> dict[str, Any]:
    """Checks the KV memory's books; returns a `PoolAudit` on the wire."""
    return dict(core.scheduler.audit().to_wire())


def attention(core: Any) -> str:
    """The attention that runs on the CPU, by vLLM's name. Where it is not ours, no forest is kept."""
    (name,) = core.collective_rpc("attention")
    if name != OWN_ATTENTION:
        core.scheduler.forest = None
    return str(name)


def install() -> None:
    """Gives vLLM's engine process what the other process calls, and tenants. May be called again."""
    salts.install()
    for name, call in CALLS.items():
        setattr(EngineCore, name, call)


CALLS: Final = {
    "parrot_free_contexts": free_contexts,
    "parrot_expect_use": expect_use,
    "parrot_keep_alive": keep_alive,
    "parrot_audit": audit_pool,
    "parrot_attention": attention,
}

install()
