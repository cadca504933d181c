"""The simulated model's next token follows from the tokens before it, however they came there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_engine.backends.base import BackendError, UnsupportedError
from parrot_engine.backends.sim.model import LIKELY, VOCABULARY, Writer, log_total, other_logit
from parrot_engine.backends.sim.sampler import Sampler, prompt_logprobs
from parrot_engine.sampling import Guide, Sampling
from parrot_engine.text.byte_tokens import CONTROL, EOS_ID

TOKENS = st.lists(
    st.one_of(st.sampled_from(b" the cat.\n"), st.sampled_from([*CONTROL.values()]), st.integers(0, 255)),
    max_size=80,
)
FREE = Sampling(max_tokens=1000, ignore_eos=True)


def draw(prompt: list[int], count: int, sampling: Sampling = FREE, seed: int = 0) -> list[int]:
    sampler = Sampler(prompt, sampling, seed)
    return [sampler.draw()[0] for _ in range(count)]


@given(prompt=TOKENS, cut=st.integers(0, 60), seed=st.integers(-(2**63), 2**63))
def test_an_output_in_two_parts_is_the_output_in_one(prompt: list[int], cut: int, seed: int) -> None:
    whole = draw(prompt, 60, seed=seed)
    assert draw(prompt + whole[:cut], 60 - cut, seed=seed) == whole[cut:]


@given(tokens=TOKENS)
def test_logits_are_the_same_for_tokens_that_came_at_once_and_one_by_one(tokens: list[int]) -> None:
    grown = Writer([], 0, seed=3)
    for token in tokens:
        grown.push(token)
    at_once = Writer(tokens, 0, seed=3)
    assert grown.best() == at_once.best()
    assert grown.logits() == at_once.logits()


@given(tokens=TOKENS)
def test_the_likeliest_token_is_what_is_written_and_all_probabilities_add_up(tokens: list[int]) -> None:
    writer = Writer(tokens, 0, seed=0)
    logits = writer.logits()
    assert max(logits, key=logits.__getitem__) == writer.best()
    assert len(logits) >= LIKELY
    others = (VOCABULARY - len(logits)) * math.exp(other_logit())
    assert math.isclose(sum(map(math.exp, logits.values())) + others, math.exp(log_total(logits)))


@given(prompt=TOKENS.filter(bool))
def test_what_is_written_is_text_and_ends(prompt: list[int]) -> None:
    sampler = Sampler(prompt, Sampling(max_tokens=1000), 0)
    tokens = []
    while (token := sampler.draw()[0]) != EOS_ID:
        tokens.append(token)
        assert len(tokens) < 3000
    assert len(tokens) > 20
    bytes(tokens).decode()


@given(prompt=TOKENS, resumed=st.integers(1, 30))
def test_an_output_that_goes_on_ends_where_it_would_have(prompt: list[int], resumed: int) -> None:
    def to_end(tokens: list[int], sampling: Sampling) -> list[int]:
        sampler = Sampler(tokens, sampling, 0)
        drawn: list[int] = []
        while not drawn or drawn[-1] != EOS_ID:
            drawn.append(sampler.draw()[0])
        return drawn

    whole = to_end(prompt, Sampling(max_tokens=1000))
    text = bytes(whole[:resumed]).decode(errors="ignore")
    first = list(text.encode())
    rest = to_end(prompt + first, Sampling(max_tokens=1000, resumed=text))
    assert first + rest == whole


@given(choices=st.lists(st.text(max_size=8), min_size=1, max_size=6), prompt=TOKENS, data=st.data())
def test_a_choice_is_made_and_goes_on_from_any_part_of_it(
    choices: list[str], prompt: list[int], data: st.DataObject
) -> None:
    def chosen(tokens: list[int], sampling: Sampling) -> str:
        sampler, drawn = Sampler(tokens, sampling, 0), []
        while not sampler.ends(token := sampler.draw()[0]):
            drawn.append(token)
        return bytes(drawn).decode()

    guide = Guide("choice", choices=tuple(choices))
    text = chosen(prompt, Sampling(max_tokens=100, guide=guide))
    assert text in choices
    first = text[: data.draw(st.integers(0, len(text)))]
    resumed = Sampling(max_tokens=100, guide=guide, resumed=first)
    assert first + chosen(prompt + list(first.encode()), resumed) == text


@given(prompt=TOKENS, token=st.integers(0, VOCABULARY - 1))
def test_any_token_can_be_forced_and_forbidden(prompt: list[int], token: int) -> None:
    forced = Sampling(max_tokens=9, logit_bias={token: 100.0})
    assert draw(prompt, 5, forced) == [token] * 5
    forbidden = Sampling(max_tokens=9, logit_bias={token: -100.0})
    assert token not in draw(prompt, 30, forbidden)


def test_another_seed_writes_another_text() -> None:
    texts = {bytes(draw(list(b"Tell"), 40, seed=seed)) for seed in range(20)}
    assert len(texts) == 20


def test_a_prompts_logarithms_are_those_of_its_tokens() -> None:
    prompt = list(b"Tell me")
    found = prompt_logprobs(prompt, 2, 0)
    assert [logprob.token_id for logprob in found] == prompt[1:]
    written = Writer(prompt[:3], 3, 0)
    assert found[2].top[0][0] == written.best()
    assert prompt_logprobs([5], 2, 0) == ()


@pytest.mark.parametrize("kind", ["json_schema", "regex", "grammar"])
def test_a_guide_that_takes_a_grammar_is_said_to_be_unsupported(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=kind):
        Sampler([1], Sampling(max_tokens=1, guide=Guide(kind, "x")), 0)  # type: ignore[arg-type]


def test_what_is_resumed_must_be_of_a_choice() -> None:
    with pytest.raises(BackendError, match="no choice"):
        Sampler([1], Sampling(max_tokens=1, guide=Guide("choice", choices=("a",)), resumed="b"), 0)
