"""vLLM's scheduler with held contexts, over a toy model whose KV is its tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.support.toy_engine import (
    BLOCK_TOKENS,
    STOP,
    WINDOW,
    Make,
    ToyEngine,
    check,
    continuation,
    numbers,
)

from parrot_engine.backends.vllm.wire import Ancestor, Books, Errand

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

WINDOW_BLOCKS = WINDOW // BLOCK_TOKENS
NULL = 1


def fill(engine: ToyEngine, tokens: list[int], context: str, parent: str = "", **more: Any) -> str:
    errand = Errand(context, parent, hold=True, fill=True, **more)
    name = engine.submit(tokens, errand, 1)
    engine.run()
    return name


def check_all_free(engine: ToyEngine) -> None:
    check(engine)
    books = engine.scheduler.audit()
    assert books.free_blocks == books.total_blocks


def test_a_fork_begins_with_its_parents_kv_to_the_token(make: Make) -> None:
    engine, tokens = make(40), numbers(22)
    fill(engine, tokens, "parent")
    child = fill(engine, tokens + numbers(5, 2), "child", "parent")
    assert engine.cached[child] == 22
    check(engine)


def test_children_share_a_partly_filled_block_all_at_once(make: Make) -> None:
    engine, tokens = make(60), numbers(22)
    fill(engine, tokens, "parent")
    prompts = [tokens + numbers(3, seed) for seed in range(4)]
    names = [engine.submit(prompt, Errand(f"c{at}", "parent"), 12) for at, prompt in enumerate(prompts)]
    engine.run()
    assert [engine.outputs[name] for name in names] == [continuation(prompt, 12) for prompt in prompts]
    assert [engine.cached[name] for name in names] == [22] * 4
    check(engine)


def test_a_context_goes_on_from_all_of_its_output_but_the_last_token(make: Make) -> None:
    engine, prompt = make(40), numbers(10, 4)
    first = engine.submit(prompt, Errand("c", hold=True), 9)
    engine.run()
    prompt += engine.outputs[first]
    again = engine.submit(prompt, Errand("c", hold=True), 9)
    engine.run()
    assert engine.cached[again] == len(prompt) - 1
    assert engine.outputs[again] == continuation(prompt, 9)
    check(engine)


@pytest.mark.parametrize("order", [("parent", "child"), ("child", "parent")])
def test_freeing_a_parent_or_a_child_leaves_the_others_kv(make: Make, order: tuple[str, str]) -> None:
    engine, tokens = make(40), numbers(22)
    fill(engine, tokens, "parent")
    fill(engine, tokens + numbers(5, 2), "child", "parent")
    engine.scheduler.contexts.let_go(order[:1])
    left = engine.scheduler.contexts._held[order[1]]
    again = engine.submit([*left.tokens, 7], Errand("other", order[1]), 4)
    engine.run()
    assert engine.cached[again] == len(left.tokens)
    engine.scheduler.contexts.let_go(order[1:])
    check_all_free(engine)


def test_a_cancelled_fill_leaves_what_was_held_before(make: Make) -> None:
    engine, tokens = make(40), numbers(20)
    fill(engine, tokens, "c")
    name = engine.submit(tokens + numbers(40, 2), Errand("c", hold=True, fill=True), 1)
    engine.step()
    engine.cancel(name)
    engine.run()
    assert len(engine.scheduler.contexts._held["c"].tokens) == 20
    check(engine)


def test_without_the_cache_only_held_kv_is_used(make: Make) -> None:
    engine, tokens = make(60), numbers(23)
    fill(engine, tokens, "c")
    other = engine.submit(tokens, Errand("other", cache=False), 2)
    own = engine.submit([*tokens, 3], Errand("c", cache=False), 2)
    engine.run()
    assert (engine.cached[other], engine.cached[own]) == (0, 23)


def test_private_kv_serves_its_tenant_only_and_public_kv_everybody(make: Make) -> None:
    engine, tokens = make(80), numbers(30)
    mine: dict[str, Any] = {"tenant": "a", "public_tokens": 18}
    fill(engine, tokens, "c", **mine)
    theirs = mine | {"tenant": "b"}
    hits = [
        engine.submit(tokens, Errand("x", "c", **mine), 1),
        engine.submit(tokens, Errand("y", "c", **theirs), 1),
        engine.submit(tokens, Errand("z", "c"), 1),
    ]
    engine.run()
    assert [engine.cached[name] for name in hits] == [29, 18, 18]


def test_the_cache_keeps_tenants_apart_from_the_block_with_the_first_private_token_on(make: Make) -> None:
    engine, tokens = make(120), numbers(30)

    def cached(tenant: str, public: int) -> int:
        name = engine.submit(tokens, Errand(f"c{public}{tenant}", tenant=tenant, public_tokens=public), 1)
        engine.run()
        return engine.cached[name]

    straddling = 18
    assert cached("a", straddling) == 0
    assert cached("a", straddling) == 28
    assert cached("b", straddling) == 16
    assert cached("b", straddling) == 28
    assert cached("", 30) == 16


def test_what_is_held_for_a_client_that_is_silent_goes(make: Make) -> None:
    engine = make(60)
    now = [0.0]
    engine.scheduler.contexts.clock = lambda: now[0]
    fill(engine, numbers(20), "silent", client="gone")
    fill(engine, numbers(20, 2), "alive", client="there")
    now[0] += engine.scheduler.contexts.held_s - 1
    engine.scheduler.contexts.keep_alive("there")
    now[0] += 2
    fill(engine, numbers(5, 3), "new", client="there")
    assert [context.context_id for context in engine.scheduler.contexts] == ["alive", "new"]
    assert engine.dropped == ["silent"]
    check(engine)


def test_under_pressure_what_is_used_last_goes_first_and_then_what_was_used_longest_ago(make: Make) -> None:
    engine = make(20)
    for seed, (context, steps) in enumerate([("old", 2.0), ("late", 9.0), ("young", 2.0)]):
        fill(engine, numbers(20, seed), context, steps=steps)
    for seed in range(4):
        fill(engine, numbers(20, 10 + seed), f"new{seed}")
    assert engine.dropped == ["late", "old", "young"]
    check(engine)


def test_a_context_that_shares_all_its_blocks_is_not_dropped_for_nothing(make: Make) -> None:
    engine, tokens = make(16), numbers(16)
    fill(engine, tokens, "parent", steps=9.0)
    fill(engine, [*tokens, 3], "child", "parent", steps=1.0)
    fill(engine, numbers(47, 2), "other")
    assert engine.dropped == ["child"]
    check(engine)


def test_held_fills_that_need_more_than_the_memory_all_finish(make: Make) -> None:
    engine = make(WINDOW_BLOCKS + 2)
    names = [
        engine.submit(numbers(50, seed), Errand(f"c{seed}", hold=True, fill=True), 1) for seed in range(5)
    ]
    engine.run()
    assert set(engine.finished) == set(names)
    check(engine)


def test_what_fits_by_itself_finishes_in_a_memory_of_one_window(make: Make) -> None:
    engine, tokens = make(WINDOW_BLOCKS), numbers(61, 3)
    fill(engine, tokens[:30], "c")
    fill(engine, tokens[:57], "c")
    name = engine.submit(tokens, Errand("c", hold=True), WINDOW - len(tokens))
    engine.run()
    assert engine.outputs[name] == continuation(tokens, WINDOW - len(tokens))
    check(engine)


def test_what_is_held_stays_while_a_request_waits_for_one_that_runs(make: Make) -> None:
    engine = make(WINDOW_BLOCKS + 4)
    fill(engine, numbers(12), "held")
    big = engine.submit(numbers(50, 2), Errand("big"), 3)
    engine.step()
    engine.submit(numbers(50, 3), Errand("waits"), 2)
    engine.step()
    assert "held" in engine.scheduler.contexts
    engine.run()
    assert engine.finished[big]
    check(engine)


def test_books_tell_how_much_is_held_shared_blocks_once(make: Make) -> None:
    engine, tokens = make(40), numbers(22)
    fill(engine, tokens, "parent")
    fill(engine, tokens + numbers(3, 2), "child", "parent")
    books = engine.scheduler.books()
    assert books.held_tokens == 20 + 2 + 5
    assert books.held_blocks == 5 + 1 + 2
    assert books.free_blocks == 40 - 8
    assert Books.of(engine.scheduler.make_stats().kv_connector_stats) == replace(books, dropped=[])


def test_the_audit_finds_a_block_that_was_freed_once_too_often(make: Make) -> None:
    engine = make(40)
    fill(engine, numbers(10), "c")
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.free_blocks(engine.scheduler.contexts._held["c"].blocks[:1])
    assert any("owners" in fault for fault in engine.scheduler.audit().faults)


def test_an_idle_scheduler_notices_a_block_that_belongs_to_nobody(make: Make) -> None:
    engine = make(40)
    engine.scheduler.kv_cache_manager.block_pool.get_new_blocks(1)
    fill(engine, numbers(10), "c")
    assert "belong to nobody" in engine.scheduler.books().fault


@dataclass
class _World:
    """Random contexts, as the backend would keep them."""

    engine: ToyEngine
    source: random.Random
    tokens: dict[str, list[int]] = field(default_factory=dict)
    private: dict[str, tuple[str, int]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    pending: dict[str, tuple[str, list[int], int, bool]] = field(default_factory=dict)
    names: int = 0

    def act(self) -> None:
        actions = (self.fill, self.fill, self.generate, self.generate, self.free, self.release)
        self.source.choice((*actions, self.cancel, self.expect))()

    def pick(self) -> str | None:
        busy = {context for context, *_ in self.pending.values()}
        idle = [context for context in self.tokens if context not in busy]
        return self.source.choice(idle) if idle else None

    def target(self) -> str:
        """A context to go on with: one that is there, a fork of it, or a new one."""
        base, kind = self.pick(), self.source.randrange(3)
        if base is not None and kind == 0:
            return base
        self.names += 1
        name = f"c{self.names}"
        self.tokens[name] = list(self.tokens[base]) if base and kind == 1 else []
        self.private[name] = self.private[base] if base and kind == 1 else ("", 0)
        self.parents[name] = (base or "") if kind == 1 else ""
        return name

    def errand(self, context: str, **what: Any) -> Errand:
        tenant, public = self.private[context]
        return Errand(
            context,
            self.parents[context],
            hold=self.source.random() < 0.8,
            tenant=tenant,
            public_tokens=public if tenant else len(self.tokens[context]),
            cache=self.source.random() < 0.8,
            steps=float(self.source.randrange(4)),
            **what,
        )

    def ancestors(self, context: str) -> list[Ancestor]:
        """What the context was forked from and what is idle of it: its KV is to be held for them too."""
        parent = self.parents[context]
        busy = {name for name, *_ in self.pending.values()}
        begins = parent in self.tokens and parent not in busy
        if not begins or self.tokens[context][: len(self.tokens[parent])] != self.tokens[parent]:
            return []
        tenant, public = self.private[parent]
        length = len(self.tokens[parent])
        return [Ancestor(parent, length, tenant, public if tenant else length)] if length else []

    def fill(self) -> None:
        context = self.target()
        prompt = self.tokens[context] + numbers(self.source.randrange(1, 20), self.source.randrange(3))
        prompt = prompt[: WINDOW - 1]
        if self.source.random() < 0.3 and not self.private[context][0] and len(prompt) > 3:
            self.private[context] = (self.source.choice("ab"), len(self.tokens[context]))
        self.send(context, prompt, 1, fill=True)

    def generate(self) -> None:
        context = self.target()
        if not self.tokens[context]:
            self.tokens[context] = numbers(3)
        prompt = self.tokens[context]
        if len(prompt) < WINDOW - 1:
            self.send(context, prompt, self.source.randrange(1, min(24, WINDOW - len(prompt))), fill=False)

    def send(self, context: str, prompt: list[int], max_tokens: int, *, fill: bool) -> None:
        # Some are urgent, and of those some can't have the steps they want.
        errand = self.errand(
            context,
            fill=fill,
            step_ms=self.source.choice((0.0, 1e-6, 1e6)),
            beside_share=self.source.choice((0.0, 0.25)),
            ahead=fill and self.source.random() < 0.5,
            ancestors=self.ancestors(context) if fill else [],
        )
        name = self.engine.submit(list(prompt), errand, max_tokens, self.source.randrange(3))
        self.pending[name] = context, list(prompt), max_tokens, fill

    def cancel(self) -> None:
        if self.pending:
            name = self.source.choice(list(self.pending))
            self.engine.cancel(name)
            del self.pending[name]

    def free(self) -> None:
        context = self.pick()
        if context is not None:
            del self.tokens[context]
            self.engine.scheduler.contexts.let_go((context,))

    def release(self) -> None:
        context = self.pick()
        if context is not None:
            self.engine.scheduler.contexts.let_go((context,))

    def expect(self) -> None:
        self.engine.scheduler.contexts.expect_use(
            {context: float(self.source.randrange(9)) for context in self.tokens}
        )

    def collect(self) -> None:
        """Checks what has finished and takes it over."""
        for name in [name for name in self.pending if name in self.engine.finished]:
            context, prompt, max_tokens, fill = self.pending.pop(name)
            if not fill:
                assert self.engine.outputs[name] == continuation(prompt, max_tokens)
            out = [] if fill else [token for token in self.engine.outputs[name] if token != STOP]
            self.tokens[context] = prompt + out


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("spare", [0, 6, 40])
def test_whatever_is_done_outputs_are_those_of_the_model_and_the_books_balance(
    make: Make, seed: int, spare: int
) -> None:
    engine = make(WINDOW_BLOCKS + spare)
    world = _World(engine, random.Random(seed))
    for _ in range(120):
        for _ in range(world.source.randrange(3)):
            world.act()
        engine.step()
        world.collect()
        check(engine)
    engine.run()
    world.collect()
    assert not world.pending
    engine.scheduler.contexts.let_go(list(world.tokens) + [c.context_id for c in engine.scheduler.contexts])
    check_all_free(engine)
