"""What the backends that hold KV promise of it: it changes times and counts, and nothing else."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

import pytest
from tests.integration.engine.backends import (
    cached_tokens,
    context,
    generate,
    held,
    holds_kv,
    new_id,
    text_of,
    tokens_of,
    unique_tokens,
    until_audit,
    until_busy,
    until_idle,
)
from tests.support.eventually import eventually

from parrot_engine.backends.base import Backend, BackendError, Sampling

pytestmark = pytest.mark.anyio

GREEDY = Sampling(max_tokens=12, ignore_eos=True)
HALF_POOL_TOKENS = 1200
"""Of a small pool of 147 blocks of 32, three of these leave no room for a fourth."""


@pytest.fixture
def backend(backend: Backend) -> Backend:
    holds_kv(backend)
    return backend


@pytest.mark.parametrize("tail", [0, 1, 13, -1])
async def test_what_is_held_is_cached_exactly_its_partial_tail_included(backend: Backend, tail: int) -> None:
    length = 3 * backend.info.block_tokens + tail
    tokens, suffix = unique_tokens(backend, length), unique_tokens(backend, 20)
    parent, child = new_id(), new_id()
    first = await backend.fill(tokens, parent)
    assert (first.filled_tokens, first.context_tokens) == (length, length)
    assert (first.computed_tokens, first.cached_tokens) == (length, 0)
    forked = await backend.fill(suffix, child, parent)
    assert (forked.context_tokens, forked.computed_tokens, forked.cached_tokens) == (length + 20, 20, length)
    # The last token is generated from, so that it is computed again.
    assert await cached_tokens(backend, parent) == length - 1
    assert await cached_tokens(backend, new_id(), child) == length + 19


@pytest.mark.parametrize("tail", [0, 13])
async def test_a_fill_holds_what_its_ancestors_need_of_it(backend: Backend, tail: int) -> None:
    length = 2 * backend.info.block_tokens + tail
    first, second, third = (unique_tokens(backend, size) for size in (length, 50, 20))
    root, middle, leaf = (new_id() for _ in range(3))
    await backend.fill(first, root, lazy=True)
    await backend.fill(second, middle, root, lazy=True)
    filled = await backend.fill(third, leaf, middle, ancestors=[middle, root])
    assert (filled.computed_tokens, filled.cached_tokens) == (length + 70, 0), "one fill computes all"
    assert [backend.holds(name) for name in (root, middle, leaf)] == [True] * 3
    await backend.free_context(leaf)
    assert (await backend.fill(first[:7], new_id(), root)).cached_tokens >= length
    assert (await backend.fill(first[:7], new_id(), middle)).cached_tokens >= length + 50
    await backend.audit()


async def test_an_ancestor_that_is_freed_meanwhile_holds_nothing(backend: Backend) -> None:
    before = (await backend.audit()).held_blocks
    root, leaf = new_id(), new_id()
    await backend.fill(unique_tokens(backend, 100), root, lazy=True)
    filling = asyncio.create_task(backend.fill(unique_tokens(backend, 400), leaf, root, ancestors=[root]))
    await until_busy(backend)
    await backend.free_context(root)
    await filling
    await backend.free_context(leaf)
    assert not backend.holds(root)
    await until_audit(backend, lambda audit: audit.held_blocks == before)


async def test_nested_fills_each_begin_where_their_parent_is(backend: Backend) -> None:
    length, parent = 0, ""
    for size in (45, 70, 5, 100):
        child = new_id()
        filled = await backend.fill(unique_tokens(backend, size), child, parent)
        assert (filled.computed_tokens, filled.cached_tokens) == (size, length)
        length, parent = length + size, child


async def test_successive_fills_of_one_context_compute_only_what_is_new(backend: Backend) -> None:
    context_id, length = new_id(), 0
    for size in (64, 1, 1, 31, 32, 33):
        filled = await backend.fill(unique_tokens(backend, size), context_id)
        assert (filled.context_tokens, filled.cached_tokens) == (length + size, length)
        length += size
    assert (await backend.fill((), context_id)).context_tokens == length


async def test_children_run_at_once_and_each_gets_its_own_text(backend: Backend) -> None:
    tokens = unique_tokens(backend, 75)
    suffixes = [backend.tokenizer.encode_value(f" Item {number} of") for number in range(6)]
    plain = [await generate(backend, await context(backend, tokens + suffix), GREEDY) for suffix in suffixes]
    parent = await context(backend, tokens)

    async def child(suffix: list[int]) -> list[int]:
        context_id = new_id()
        assert (await backend.fill(suffix, context_id, parent)).cached_tokens >= len(tokens)
        return tokens_of(await generate(backend, context_id, GREEDY))

    assert await asyncio.gather(*map(child, suffixes)) == [tokens_of(steps) for steps in plain]


@pytest.mark.parametrize("parent_first", [True, False])
async def test_freeing_a_parent_or_a_child_leaves_the_others_kv(backend: Backend, parent_first: bool) -> None:
    parent, child = await context(backend, unique_tokens(backend, 75)), new_id()
    await backend.fill(unique_tokens(backend, 20), child, parent)
    gone, left = (parent, child) if parent_first else (child, parent)
    await backend.free_context(gone)
    await until_audit(backend, lambda books: gone not in books.held_contexts)
    assert await cached_tokens(backend, left) == (94 if parent_first else 74)


async def test_what_is_released_is_held_no_longer_and_its_tokens_stay(backend: Backend) -> None:
    context_id = await context(backend, unique_tokens(backend, 75))
    assert context_id in await held(backend)
    await backend.release(context_id)
    await backend.release(context_id)
    books = await until_audit(backend, lambda books: context_id not in books.held_contexts)
    assert books.held_blocks == 0
    filled = await backend.fill((), context_id)
    assert filled.context_tokens == 75
    assert filled.computed_tokens + filled.cached_tokens == 75
    assert context_id in await held(backend)


async def test_a_lazy_fill_computes_nothing_and_the_next_one_computes_it_too(backend: Backend) -> None:
    context_id = new_id()
    for size in (40, 10):
        filled = await backend.fill(unique_tokens(backend, size), context_id, lazy=True)
        assert (filled.computed_tokens, filled.cached_tokens) == (0, 0)
    assert await held(backend) == set()
    filled = await backend.fill(unique_tokens(backend, 5), context_id)
    assert (filled.filled_tokens, filled.computed_tokens, filled.context_tokens) == (5, 55, 55)


async def test_a_held_output_is_there_for_what_comes_after_it(backend: Backend) -> None:
    context_id = await context(backend, unique_tokens(backend, 75))
    steps = await generate(backend, context_id, GREEDY, hold=True)
    length = steps[-1].context_tokens
    assert length == 75 + 12
    after = await backend.fill(unique_tokens(backend, 9), context_id)
    assert length - 1 <= after.cached_tokens <= length
    assert after.computed_tokens + after.cached_tokens == length + 9


async def test_an_output_in_two_parts_reads_as_one(backend: Backend) -> None:
    tokens = unique_tokens(backend, 75)
    whole = await generate(backend, await context(backend, tokens), Sampling(max_tokens=24, ignore_eos=True))
    context_id = await context(backend, tokens, lazy=True)
    first = await generate(backend, context_id, GREEDY, hold=True)
    second = await generate(backend, context_id, GREEDY, hold=True)
    assert tokens_of(first) + tokens_of(second) == tokens_of(whole)
    assert second[-1].cached_tokens >= 75 + 11


async def test_a_cut_off_output_leaves_no_kv_of_what_was_cut(backend: Backend) -> None:
    tokens = unique_tokens(backend, 75)
    whole = text_of(await generate(backend, await context(backend, tokens), GREEDY))
    stop = whole[len(whole) // 2 :][:3]
    context_id = await context(backend, tokens)
    steps = await generate(
        backend, context_id, Sampling(max_tokens=12, ignore_eos=True, stop=(stop,)), hold=True
    )
    assert steps[-1].finish_reason == "stop_text"
    text = backend.tokenizer.encode_value(text_of(steps))
    plain = await context(backend, tokens + text, lazy=True)
    assert tokens_of(await generate(backend, context_id, GREEDY)) == tokens_of(
        await generate(backend, plain, GREEDY, cache=False)
    )


async def test_a_prompt_seen_before_is_cached_and_a_new_one_is_not(backend: Backend) -> None:
    tokens = unique_tokens(backend, 5 * backend.info.block_tokens + 7)
    first = await context(backend, tokens, lazy=True)
    again = await context(backend, tokens, lazy=True)
    assert await cached_tokens(backend, first) == 0
    assert await cached_tokens(backend, again) == 5 * backend.info.block_tokens


async def test_without_the_cache_only_what_is_held_is_used(backend: Backend) -> None:
    tokens = unique_tokens(backend, 75)
    await cached_tokens(backend, await context(backend, tokens, lazy=True))
    cold = await context(backend, tokens, lazy=True)
    assert await cached_tokens(backend, cold, cache=False) == 0
    filled = await backend.fill((), cold, cache=False)
    assert (filled.computed_tokens, filled.cached_tokens) == (filled.context_tokens, 0)
    assert await cached_tokens(backend, new_id(), cold, cache=False) == filled.context_tokens - 1
    assert await cached_tokens(backend, cold, cache=False) == filled.context_tokens - 1


async def test_a_tenants_tokens_are_cached_for_nobody_else(backend: Backend) -> None:
    block = backend.info.block_tokens
    public, private = unique_tokens(backend, 10 * block), unique_tokens(backend, 10 * block)

    async def cached(tenant: str) -> int:
        context_id = await context(backend, public, lazy=True)
        await backend.fill(private, context_id, private_to=tenant, lazy=True)
        return await cached_tokens(backend, context_id)

    whole = 20 * block - block
    assert [await cached(tenant) for tenant in ("a", "a", "b", "b", "a", "")] == [
        0,
        whole,
        10 * block,
        whole,
        whole,
        10 * block,
    ]


async def test_a_block_that_holds_a_private_token_is_private(backend: Backend) -> None:
    block = backend.info.block_tokens
    public, private = unique_tokens(backend, 3 * block + 7), unique_tokens(backend, 2 * block)

    async def cached(tenant: str, tokens: list[int]) -> int:
        context_id = await context(backend, public, lazy=True)
        await backend.fill(tokens, context_id, private_to=tenant, lazy=True)
        return await cached_tokens(backend, context_id)

    assert await cached("a", private) == 0
    assert await cached("a", private) == 5 * block
    # Neither the same tokens nor a guess of the first of them tells anything of tenant a's.
    assert await cached("b", private) == 3 * block
    assert await cached("c", private[: block - 7] + unique_tokens(backend, block)) == 3 * block


async def test_what_a_parent_learnt_in_private_later_is_no_part_of_its_public_children(
    backend: Backend,
) -> None:
    public, secret = unique_tokens(backend, 45), unique_tokens(backend, 64)
    parent, child = await context(backend, public), new_id()
    await backend.fill((), child, parent, lazy=True)
    await backend.fill(secret, parent, private_to="a")
    guessed = await backend.fill(secret, child, private_to="b")
    assert guessed.cached_tokens <= 45


@pytest.mark.parametrize("how", ["fill", "generate"])
async def test_what_is_cancelled_leaves_its_context_as_it_was(backend: Backend, how: str) -> None:
    context_id = await context(backend, unique_tokens(backend, 75))
    more = unique_tokens(backend, 1200)

    async def work() -> None:
        if how == "fill":
            await backend.fill(more, context_id, private_to="a")
        else:
            await generate(backend, context_id, Sampling(max_tokens=1500, ignore_eos=True), hold=True)

    task = asyncio.create_task(work())
    await until_busy(backend)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(backend)
    assert (await backend.fill(unique_tokens(backend, 1), context_id, private_to="b")).context_tokens == 76
    assert await held(backend) == {context_id}


async def test_a_request_for_the_prompts_logarithms_computes_all_of_it(backend: Backend) -> None:
    context_id = await context(backend, unique_tokens(backend, 75))
    steps = await generate(backend, context_id, Sampling(max_tokens=2, ignore_eos=True, prompt_logprobs=0))
    assert steps[-1].cached_tokens == 0
    assert len(steps[0].prompt_logprobs) == 74


async def test_a_fill_beyond_the_window_is_refused_and_harms_nobody(backend: Backend) -> None:
    context_id = await context(backend, unique_tokens(backend, 75))
    with pytest.raises(BackendError):
        await backend.fill(unique_tokens(backend, backend.info.context_window_tokens), context_id)
    assert (await backend.fill((), context_id)).context_tokens == 75


async def test_held_kv_goes_in_the_order_of_its_next_use_and_then_of_its_last(small_backend: Backend) -> None:
    backend = small_backend
    first, second, third = [
        await context(backend, unique_tokens(backend, HALF_POOL_TOKENS)) for _ in range(3)
    ]
    await backend.expect_use(second, math.inf)
    await backend.expect_use(third, 2)
    await backend.expect_use(first, 2)
    fourth = await context(backend, unique_tokens(backend, HALF_POOL_TOKENS))
    assert await held(backend) == {first, third, fourth}
    await cached_tokens(backend, new_id(), first)
    fifth = await context(backend, unique_tokens(backend, HALF_POOL_TOKENS))
    assert await held(backend) == {first, fourth, fifth}


async def test_what_is_merely_cached_goes_before_what_is_held(small_backend: Backend) -> None:
    backend = small_backend
    kept = await context(backend, unique_tokens(backend, HALF_POOL_TOKENS))
    for _ in range(5):
        await backend.free_context(await context(backend, unique_tokens(backend, HALF_POOL_TOKENS)))
    assert kept in await held(backend)
    assert await cached_tokens(backend, kept) == HALF_POOL_TOKENS - 1


async def test_more_fills_than_the_memory_holds_all_finish(small_backend: Backend) -> None:
    backend = small_backend
    contexts = [unique_tokens(backend, HALF_POOL_TOKENS) for _ in range(5)]
    ids = await asyncio.gather(*(context(backend, tokens) for tokens in contexts))
    together = await asyncio.gather(*(generate(backend, context_id, GREEDY) for context_id in ids))
    for tokens, steps in zip(contexts, together, strict=True):
        plain = await generate(backend, await context(backend, tokens, lazy=True), GREEDY, cache=False)
        assert tokens_of(steps) == tokens_of(plain)


async def test_outputs_that_outgrow_the_memory_all_finish_as_if_alone(small_backend: Backend) -> None:
    backend = small_backend
    sampling = Sampling(max_tokens=400, ignore_eos=True)
    parent = await context(backend, unique_tokens(backend, 300))
    suffixes = [unique_tokens(backend, 500) for _ in range(6)]

    async def child(suffix: list[int], *, cache: bool) -> list[int]:
        context_id = new_id()
        await backend.fill(suffix, context_id, parent, lazy=True)
        steps = await generate(backend, context_id, sampling, hold=True, cache=cache)
        await backend.free_context(context_id)
        return tokens_of(steps)

    together = await asyncio.gather(*(child(suffix, cache=True) for suffix in suffixes))
    for suffix, tokens in zip(suffixes, together, strict=True):
        assert await child(suffix, cache=False) == tokens


async def test_a_whole_window_fits_whatever_is_held(small_backend: Backend) -> None:
    backend = small_backend
    for _ in range(3):
        await context(backend, unique_tokens(backend, HALF_POOL_TOKENS))
    window = backend.info.context_window_tokens
    context_id = await context(backend, unique_tokens(backend, window - 20))
    steps = await generate(backend, context_id, Sampling(max_tokens=20, ignore_eos=True), hold=True)
    assert steps[-1].context_tokens == window


async def test_outputs_with_a_better_priority_start_first(small_backend: Backend) -> None:
    backend = small_backend
    started: list[str] = []

    async def run(name: str, max_tokens: int, priority: int) -> None:
        context_id = await context(backend, unique_tokens(backend, 20), lazy=True)
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        async with aclosing(backend.generate(sampling, context_id, priority=priority)) as steps:
            await anext(steps)
            started.append(name)
            async for _ in steps:
                pass

    # More than the batch takes, ending one after the other.
    busy = [asyncio.create_task(run("busy", 8 + 2 * n, 0)) for n in range(2 * backend.info.capacity)]
    await eventually(lambda: "busy" in started)
    late = [asyncio.create_task(run("late", 4, 5)) for _ in range(4)]
    urgent = [asyncio.create_task(run("urgent", 4, -5)) for _ in range(4)]
    await asyncio.gather(*busy, *late, *urgent)
    assert [name for name in started if name != "busy"] == ["urgent"] * 4 + ["late"] * 4


async def test_the_counts_of_memory_add_up_while_it_works(backend: Backend) -> None:
    parent = await context(backend, unique_tokens(backend, 100))
    await context(backend, unique_tokens(backend, 10), parent_context_id=parent)
    stats, books, block = backend.stats(), await backend.audit(), backend.info.block_tokens
    assert books.free_blocks + books.held_blocks + books.request_blocks == books.total_blocks
    # Three whole blocks are shared; each of the two has a tail of its own.
    assert books.held_blocks == (100 // block) + 2
    assert stats.free_tokens <= backend.info.kv_tokens - stats.held_tokens
    child = new_id()
    async with aclosing(backend.generate(Sampling(max_tokens=900, ignore_eos=True), child, parent)) as steps:
        await anext(steps)
        books = await backend.audit()
        assert books.request_blocks > 0
        assert books.free_blocks + books.held_blocks + books.request_blocks == books.total_blocks
