"""What every backend makes of how an output is to be generated."""

from __future__ import annotations

import json
import math
import re
from collections import Counter

import pytest
from tests.integration.engine.backends import (
    generate,
    new_id,
    prompt,
    text_of,
    tokens_of,
)

from parrot_engine.backends.base import Backend, BackendError, Sampling, Step, UnsupportedError
from parrot_engine.sampling import Guide

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


async def output(backend: Backend, sampling: Sampling) -> list[Step]:
    """What a backend makes of it, on the one prompt of these tests; skips what it says it can't do."""
    try:
        return await generate(backend, await prompt(backend), sampling)
    except BackendError as error:
        # A server tells in words what it has no means for.
        if type(error) is UnsupportedError or "can't keep an output to" in str(error):
            pytest.skip(str(error))
        raise


async def plain(backend: Backend, max_tokens: int = 24) -> list[Step]:
    return await output(backend, Sampling(max_tokens=max_tokens, ignore_eos=True))


@pytest.mark.parametrize("filters", [{"min_p": 1.0}, {"top_k": 1}, {"temperature": 0.0}], ids=" ".join)
async def test_where_only_the_likeliest_token_is_left_no_seed_counts(
    backend: Backend, filters: dict[str, float]
) -> None:
    wanted = text_of(await plain(backend))
    for seed in (1, 2):
        settings = {"max_tokens": 24, "temperature": 1.0, "seed": seed, "ignore_eos": True} | filters
        assert text_of(await output(backend, Sampling(**settings))) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 10.0}],
    ids=" ".join,
)
async def test_a_penalty_makes_tokens_repeat_less(backend: Backend, penalty: dict[str, float]) -> None:
    plainly = tokens_of(await plain(backend, 64))
    settings = {"max_tokens": 64, "ignore_eos": True} | penalty
    penalised = tokens_of(await output(backend, Sampling(**settings)))  # type: ignore[arg-type]
    assert len(penalised) == 64
    assert max(Counter(penalised).values()) <= max(Counter(plainly).values())
    if "presence_penalty" not in penalty:
        assert penalised != plainly


async def test_a_bias_forces_a_token_and_forbids_one(backend: Backend) -> None:
    plainly = tokens_of(await plain(backend))
    forced = backend.tokenizer.encode_value("x")[0]
    sampling = Sampling(max_tokens=6, ignore_eos=True, logit_bias={forced: 100.0})
    assert tokens_of(await output(backend, sampling)) == [forced] * 6
    sampling = Sampling(max_tokens=24, ignore_eos=True, logit_bias={plainly[0]: -100.0})
    assert plainly[0] not in tokens_of(await output(backend, sampling))


async def test_bytes_that_are_no_text_are_forced_and_do_no_harm(backend: Backend) -> None:
    # In the middle of nothing, the second byte of a character.
    forced = backend.tokenizer.encode_value("é")[-1]
    sampling = Sampling(max_tokens=6, ignore_eos=True, logit_bias={forced: 100.0})
    steps = await output(backend, sampling)
    assert tokens_of(steps) == [forced] * 6
    assert text_of(steps).encode().decode() == text_of(steps)
    assert len(tokens_of(await plain(backend))) == 24


async def test_a_bias_of_a_token_that_the_model_has_not_is_refused(backend: Backend) -> None:
    with pytest.raises(BackendError):
        await output(backend, Sampling(max_tokens=1, logit_bias={2**31 - 1: 1.0}))
    assert len(tokens_of(await plain(backend))) == 24


async def test_a_stop_token_ends_the_output_and_is_in_neither_text_nor_context(backend: Backend) -> None:
    tokens = tokens_of(await plain(backend))
    place = next(place for place in range(4, 24) if tokens[place] not in tokens[:place])
    steps = await output(backend, Sampling(max_tokens=24, ignore_eos=True, stop_token_ids=(tokens[place],)))
    assert tokens_of(steps) == tokens[: place + 1]
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].context_tokens == steps[0].prompt_tokens + place
    assert text_of(steps) == backend.tokenizer.decode(tokens[:place])


async def test_a_stop_token_before_min_tokens_is_not_made(backend: Backend) -> None:
    first = tokens_of(await plain(backend))[0]
    sampling = Sampling(max_tokens=24, min_tokens=10, ignore_eos=True, stop_token_ids=(first,))
    steps = await output(backend, sampling)
    assert first not in tokens_of(steps)[:10]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
async def test_logarithms_are_those_of_the_tokens_and_of_the_likeliest(backend: Backend, count: int) -> None:
    plainly = await plain(backend)
    steps = await output(backend, Sampling(max_tokens=24, ignore_eos=True, logprobs=count))
    assert tokens_of(steps) == tokens_of(plainly)
    for step in steps:
        assert [logprob.token_id for logprob in step.logprobs] == list(step.token_ids)
        for logprob in step.logprobs:
            values = [value for _, value in logprob.top]
            assert len(values) == count
            assert values == sorted(values, reverse=True)
            assert all(value <= 0 for value in (*values, logprob.logprob))
            assert math.fsum(map(math.exp, values)) <= 1 + 1e-4
            # Greedy, so that the likeliest was taken.
            if count:
                assert logprob.top[0] == (logprob.token_id, logprob.logprob)
    assert all(not step.logprobs for step in plainly)


async def test_logarithms_are_those_before_a_bias(backend: Backend) -> None:
    forced = backend.tokenizer.encode_value("~")[0]
    sampling = Sampling(max_tokens=3, ignore_eos=True, logit_bias={forced: 100.0}, logprobs=1)
    for step in await output(backend, sampling):
        for logprob in step.logprobs:
            assert logprob.token_id == forced
            assert logprob.logprob < logprob.top[0][1]


@pytest.mark.parametrize("count", [0, 3])
async def test_a_prompts_logarithms_are_one_for_each_token_but_the_first(
    backend: Backend, count: int
) -> None:
    text = "The seas of Europe are the North Sea"
    tokens = backend.tokenizer.encode_template(text)
    try:
        steps = await generate(
            backend,
            await prompt(backend, text),
            Sampling(max_tokens=3, ignore_eos=True, prompt_logprobs=count),
        )
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert [logprob.token_id for logprob in steps[0].prompt_logprobs] == tokens[1:]
    assert all(len(logprob.top) == count for logprob in steps[0].prompt_logprobs)
    assert all(logprob.logprob <= 0 for logprob in steps[0].prompt_logprobs)
    assert all(not step.prompt_logprobs for step in steps[1:])


@pytest.mark.parametrize("choices", [("yes", "no"), ("a", "ab", "abc"), ("港", "港灯", "🦜🦜")])
async def test_a_choice_is_one_of_the_choices(backend: Backend, choices: tuple[str, ...]) -> None:
    sampling = Sampling(max_tokens=24, guide=Guide("choice", choices=choices))
    steps = await output(backend, sampling)
    assert text_of(steps) in choices
    assert steps[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("guide", "holds"),
    [
        (Guide("regex", "[ab]{3}-[0-9]{2}"), lambda text: re.fullmatch("[ab]{3}-[0-9]{2}", text)),
        (Guide("grammar", 'root ::= "north" | "south"'), lambda text: text in {"north", "south"}),
        (Guide("json_schema", json.dumps(SCHEMA)), lambda text: set(json.loads(text)) == {"name", "old"}),
    ],
    ids=lambda value: value.kind if isinstance(value, Guide) else "",
)
async def test_an_output_is_what_its_guide_says(backend: Backend, guide: Guide, holds: object) -> None:
    steps = await output(backend, Sampling(max_tokens=100, guide=guide))
    assert steps[-1].finish_reason == "stop"
    assert callable(holds)
    assert holds(text_of(steps))


@pytest.mark.parametrize(
    "guide",
    [Guide("regex", "(unclosed"), Guide("json_schema", '{"type": 5}'), Guide("grammar", "root ::= missing")],
    ids=lambda guide: guide.kind,
)
async def test_a_guide_that_is_wrong_is_refused_and_harms_nobody(backend: Backend, guide: Guide) -> None:
    with pytest.raises(BackendError):
        await generate(backend, await prompt(backend), Sampling(max_tokens=5, guide=guide))
    assert len(tokens_of(await plain(backend))) == 24


async def resumed(backend: Backend, first: str, sampling: Sampling) -> list[Step]:
    """An output that was broken off behind `first` goes on."""
    context_id = await prompt(backend)
    await backend.fill(backend.tokenizer.encode_value(first), context_id, lazy=True)
    return await generate(backend, context_id, sampling)


async def test_an_output_that_was_broken_off_goes_on_as_if_it_had_not_been(backend: Backend) -> None:
    whole = tokens_of(await plain(backend, 40))
    decode, encode = backend.tokenizer.decode, backend.tokenizer.encode_value
    # Where the text's tokens are those that were generated, and no character is cut.
    places = [place for place in range(1, 40) if encode(decode(whole[:place])) == whole[:place]]
    assert len(places) >= 3
    for place in (places[0], places[len(places) // 2], places[-1]):
        first = decode(whole[:place])
        sampling = Sampling(max_tokens=40 - place, ignore_eos=True, resumed=first)
        assert tokens_of(await resumed(backend, first, sampling)) == whole[place:]


async def test_an_output_that_was_broken_off_ends_where_it_would_have(backend: Backend) -> None:
    whole = await output(backend, Sampling(max_tokens=900))
    text = text_of(whole)
    if whole[-1].finish_reason != "stop" or not text:
        pytest.skip("the model does not end this output")
    if (backend.info.backend, backend.info.model) == ("openai", "sim"):
        pytest.skip("the simulated model ends by what is its own, which its server is not told")
    tokens = tokens_of(whole)[:-1]
    place = next(
        place
        for place in range(len(tokens) // 2, len(tokens))
        if backend.tokenizer.encode_value(backend.tokenizer.decode(tokens[:place])) == tokens[:place]
    )
    first = backend.tokenizer.decode(tokens[:place])
    rest = await resumed(backend, first, Sampling(max_tokens=900, resumed=first))
    assert (first + text_of(rest), rest[-1].finish_reason) == (text, "stop")


async def test_a_choice_that_was_begun_goes_on(backend: Backend) -> None:
    guide = Guide("choice", choices=("yellow submarine", "yes", "no"))
    for first in ("ye", "yellow sub", "n"):
        rest = await resumed(backend, first, Sampling(max_tokens=24, guide=guide, resumed=first))
        assert first + text_of(rest) in guide.choices


async def test_what_fits_no_choice_can_not_go_on(backend: Backend) -> None:
    guide = Guide("choice", choices=("yes", "no"))
    with pytest.raises(BackendError):
        await resumed(backend, "maybe", Sampling(max_tokens=24, guide=guide, resumed="maybe"))
    assert len(tokens_of(await plain(backend))) == 24


async def test_a_context_that_is_forked_for_it_may_be_generated_from_at_once(backend: Backend) -> None:
    parent = await prompt(backend)
    steps = await generate(backend, new_id(), Sampling(max_tokens=24, ignore_eos=True), parent)
    assert text_of(steps) == text_of(await plain(backend))
