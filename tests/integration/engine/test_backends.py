"""What every backend promises, tried on each."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.integration.engine.backends import (
    PROMPT,
    generate,
    new_id,
    prompt,
    text_of,
    tokens_of,
    until_idle,
)

from parrot_engine.backends.base import Backend, BackendError, ContextError, Sampling

pytestmark = pytest.mark.anyio


async def test_only_the_last_step_has_a_reason_and_phases(backend: Backend) -> None:
    steps = await generate(backend, await prompt(backend), Sampling(max_tokens=12, ignore_eos=True))
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["length"]
    phases = steps[-1].phases
    assert phases is not None
    assert phases.queue_ms >= 0
    assert phases.prefill_ms > 0
    assert phases.decode_ms > 0
    assert len(tokens_of(steps)) == 12


async def test_the_same_prompt_gives_the_same_text(backend: Backend) -> None:
    sampling = Sampling(max_tokens=24, ignore_eos=True)
    first = await generate(backend, await prompt(backend), sampling)
    second = await generate(backend, await prompt(backend), sampling)
    assert text_of(first) == text_of(second) != ""


async def test_a_seed_repeats_what_temperature_draws(backend: Backend) -> None:
    def drawn(seed: int) -> Sampling:
        return Sampling(max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True)

    texts = [text_of(await generate(backend, await prompt(backend), drawn(seed))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


async def test_a_seed_is_kept_through_a_prompt_that_takes_several_steps(backend: Backend) -> None:
    long = "".join(f"Line {number} of a long prompt. " for number in range(180))[
        : backend.info.context_window_tokens - 300
    ]
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5, ignore_eos=True)

    async def drawn(prefix: str) -> str:
        return text_of(await generate(backend, await prompt(backend, prefix + long), sampling))

    alone = await drawn("A")
    together = await asyncio.gather(drawn("A"), drawn("B"), drawn("C"))
    assert together[0] == alone


@pytest.mark.parametrize(
    "extreme",
    [
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"seed": -1},
        {"top_k": 2**32 - 1},
        {"top_k": 1},
        {"top_p": 1e-12},
        {"temperature": 1e-12},
        {"temperature": 2.0},
        {"stop": ("\0" * 1024,) * 16},
    ],
    ids=lambda extreme: next(iter(extreme)),
)
async def test_a_setting_at_its_extreme_harms_nobody(backend: Backend, extreme: dict[str, object]) -> None:
    settings = {"max_tokens": 3, "temperature": 0.9, "ignore_eos": True} | extreme
    steps = await generate(backend, await prompt(backend), Sampling(**settings))  # type: ignore[arg-type]
    assert len(tokens_of(steps)) == 3


async def test_no_delta_holds_part_of_a_stop_text_and_the_text_ends_before_it(backend: Backend) -> None:
    sampling = Sampling(max_tokens=24, ignore_eos=True)
    whole = text_of(await generate(backend, await prompt(backend), sampling))
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    stopped = await generate(
        backend, await prompt(backend), Sampling(max_tokens=24, ignore_eos=True, stop=(stop, "\0never"))
    )
    assert stopped[-1].finish_reason == "stop_text"
    assert text_of(stopped) == whole[: whole.index(stop)]


async def test_a_stop_text_before_min_tokens_does_not_count(backend: Backend) -> None:
    plain = await generate(backend, await prompt(backend), Sampling(max_tokens=20, ignore_eos=True))
    stop = text_of(plain)[:2]
    steps = await generate(
        backend, await prompt(backend), Sampling(max_tokens=20, min_tokens=10, ignore_eos=True, stop=(stop,))
    )
    assert len(tokens_of(steps)) > 10
    assert text_of(steps).startswith(stop)


async def test_deltas_are_whole_characters(backend: Backend) -> None:
    context_id = await prompt(backend, "漢字とかな、😀😃😄 and more 😁😂🤣😅, 港 灯台 🦜🦜🦜🦜")
    steps = await generate(backend, context_id, Sampling(max_tokens=48, ignore_eos=True))
    assert "\ufffd" not in text_of(steps)
    assert all(step.text == step.text.encode().decode() for step in steps)


async def test_a_fork_starts_where_its_parent_is_and_leaves_it_alone(backend: Backend) -> None:
    sampling = Sampling(max_tokens=16, ignore_eos=True)
    parent = await prompt(backend)
    suffix = backend.tokenizer.encode_value("Sure: the North Sea,")
    left, right, plain = new_id(), new_id(), await prompt(backend)
    await backend.fill(suffix, left, parent)
    await backend.fill(suffix, plain)
    results = await asyncio.gather(
        generate(backend, left, sampling), generate(backend, right, sampling, parent)
    )
    assert text_of(results[0]) == text_of(await generate(backend, plain, sampling))
    assert text_of(results[1]) == text_of(await generate(backend, parent, sampling))


async def test_a_context_goes_on_after_its_output_as_if_the_text_had_been_filled(backend: Backend) -> None:
    plain = "The seas of Europe, from north to south, are"
    sampling = Sampling(max_tokens=10, ignore_eos=True)
    context_id = await prompt(backend, plain)
    first = await generate(backend, context_id, sampling)
    assert first[-1].context_tokens == first[0].prompt_tokens + 10
    again = await generate(backend, context_id, sampling)
    straight = await generate(backend, await prompt(backend, plain), Sampling(max_tokens=20, ignore_eos=True))
    assert text_of(first) + text_of(again) == text_of(straight)
    assert again[0].prompt_tokens == first[-1].context_tokens


async def test_the_token_that_ends_an_output_is_not_in_the_context(backend: Backend) -> None:
    context_id = await prompt(backend, "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n")
    steps = await generate(backend, context_id, Sampling(max_tokens=500))
    assert steps[-1].finish_reason == "stop"
    assert tokens_of(steps)[-1] in backend.tokenizer.control_ids
    assert steps[-1].context_tokens == steps[0].prompt_tokens + len(tokens_of(steps)) - 1
    assert "<|" not in text_of(steps)


async def test_closing_an_output_takes_it_out_and_leaves_its_context_as_it_was(backend: Backend) -> None:
    context_id = await prompt(backend)
    async with aclosing(backend.generate(Sampling(max_tokens=900, ignore_eos=True), context_id)) as steps:
        await anext(steps)
        assert backend.stats().running == 1
    await until_idle(backend)
    result = await backend.fill((), context_id)
    assert result.context_tokens == len(backend.tokenizer.encode_template(PROMPT))
    await backend.free_context(context_id)


async def test_cancelling_the_reader_takes_the_output_out(backend: Backend) -> None:
    context_id = await prompt(backend)
    begun = asyncio.Event()

    async def read() -> None:
        async with aclosing(backend.generate(Sampling(max_tokens=900, ignore_eos=True), context_id)) as steps:
            async for _ in steps:
                begun.set()

    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until_idle(backend)
    await backend.free_context(context_id)


async def test_outputs_run_together_and_each_gets_its_own_text(backend: Backend) -> None:
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    texts = [f"Item {number}: " for number in range(6)]
    alone = [text_of(await generate(backend, await prompt(backend, text), sampling)) for text in texts]
    contexts = [await prompt(backend, text) for text in texts]
    together = await asyncio.gather(*(generate(backend, context_id, sampling) for context_id in contexts))
    assert [text_of(steps) for steps in together] == alone


async def test_a_context_in_use_can_be_neither_used_nor_forked_nor_freed(backend: Backend) -> None:
    context_id = await prompt(backend)
    async with aclosing(backend.generate(Sampling(max_tokens=900, ignore_eos=True), context_id)) as steps:
        await anext(steps)
        with pytest.raises(ContextError):
            await backend.fill([1], context_id)
        with pytest.raises(ContextError):
            await backend.fill([1], new_id(), context_id)
        with pytest.raises(ContextError):
            await backend.free_context(context_id)
        with pytest.raises(ContextError):
            await generate(backend, context_id, Sampling(max_tokens=1))
    await backend.free_context(context_id)


async def test_a_freed_context_is_gone_and_freeing_it_again_does_nothing(backend: Backend) -> None:
    before = backend.stats().contexts
    context_id = await prompt(backend)
    await backend.free_context(context_id)
    await backend.free_context(context_id)
    assert backend.stats().contexts == before
    with pytest.raises(ContextError):
        await backend.fill([1], new_id(), context_id)


async def test_a_parent_is_not_changed_afterwards(backend: Backend) -> None:
    parent, other, child = await prompt(backend), await prompt(backend), new_id()
    await backend.fill([65], child, parent)
    await backend.fill([65], child, parent)
    with pytest.raises(ContextError):
        await backend.fill([65], child, other)


async def test_a_control_character_in_a_prompt_is_no_trouble(backend: Backend) -> None:
    context_id = new_id()
    await backend.fill(backend.tokenizer.encode_value("left\0right\x1b[0m"), context_id)
    steps = await generate(backend, context_id, Sampling(max_tokens=4, ignore_eos=True))
    assert steps[-1].finish_reason == "length"


async def test_an_empty_context_is_nothing_to_generate_from(backend: Backend) -> None:
    context_id = new_id()
    assert (await backend.fill((), context_id)).context_tokens == 0
    with pytest.raises(BackendError):
        await generate(backend, context_id, Sampling(max_tokens=1))


async def test_a_context_has_one_tenant(backend: Backend) -> None:
    parent, child = new_id(), new_id()
    await backend.fill([65, 66], parent, lazy=True)
    await backend.fill([67], child, parent, private_to="t1", lazy=True)
    with pytest.raises(ContextError):
        await backend.fill([68], child, private_to="t2", lazy=True)
    with pytest.raises(ContextError):
        await generate(backend, child, Sampling(max_tokens=1), private_to="t2")
    with pytest.raises(ContextError):
        await backend.fill([68], new_id(), child, private_to="t2", lazy=True)
    assert (await backend.fill([68], child, private_to="t1", lazy=True)).context_tokens == 4
    assert (await backend.fill([68], new_id(), parent, private_to="t2", lazy=True)).context_tokens == 3


async def test_what_is_told_about_contexts_that_are_not_there_does_nothing(backend: Backend) -> None:
    await backend.release("test/nowhere")
    await backend.expect_use("test/nowhere", 3)
    await backend.free_context("test/nowhere")
