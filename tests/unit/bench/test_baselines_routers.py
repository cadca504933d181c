"""Where a client's requests go, of several engines."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_bench.systems.routers import (
    BALANCE_REQUESTS,
    CHUNK_CHARS,
    LeastBusy,
    PrefixAware,
    RoundRobin,
    Router,
)

KINDS = [LeastBusy, RoundRobin, PrefixAware]
TEXT = "A page of the harbour master's book, which he wrote before the storm came in. " * 40


def system_prompt(name: str) -> str:
    """A long prefix of its own."""
    return f"You are {name}. " * 100


def test_round_robin_takes_turns_whatever_is_open() -> None:
    router = RoundRobin(3)
    with ExitStack() as stack:
        assert [stack.enter_context(router.placed("")) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_least_busy_is_taken_and_equals_take_turns() -> None:
    router = LeastBusy(2)
    with router.placed(TEXT) as first, router.placed(TEXT) as second:
        assert {first, second} == {0, 1}
    places = []
    for _ in range(4):
        with router.placed(TEXT) as place:
            places.append(place)
    assert places in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_fails_is_no_load(kind: type[Router]) -> None:
    router = kind(2)
    with pytest.raises(RuntimeError), router.placed(TEXT):
        raise RuntimeError
    assert router.open == [0, 0]


def test_requests_follow_their_prefix_and_new_prefixes_spread() -> None:
    router = PrefixAware(2)
    homes: dict[str, set[int]] = {}
    with ExitStack() as stack:
        for turn in range(6):
            for name in ("a baker", "a pilot"):
                prompt = f"{system_prompt(name)}Question {turn}?"
                homes.setdefault(name, set()).add(stack.enter_context(router.placed(prompt)))
    assert sorted(map(sorted, homes.values())) == [[0], [1]]


def test_a_prefix_that_is_a_small_part_of_the_prompt_does_not_decide() -> None:
    router = PrefixAware(2)
    instruction = "Summarise this. " * 10
    with ExitStack() as stack:
        places = [stack.enter_context(router.placed(instruction + f"{chunk} " * 2000)) for chunk in range(8)]
    assert places.count(0) == places.count(1) == 4


def test_loads_that_differ_too_much_decide_alone() -> None:
    router = PrefixAware(2)
    with ExitStack() as stack:
        places = [stack.enter_context(router.placed(TEXT)) for _ in range(BALANCE_REQUESTS + 2)]
    assert places == [places[0]] * (BALANCE_REQUESTS + 1) + [1 - places[0]]


def sent(router: Router, engine: int, prompt: str) -> None:
    """Has a prompt go to an engine, because the other one is overrun."""
    router.open = [99, 99]
    router.open[engine] = 0
    assert router.choose(prompt) == engine
    router.open = [0, 0]


def test_the_longest_prefix_wins_though_its_engine_is_busier() -> None:
    router = PrefixAware(2)
    sent(router, 0, TEXT[:CHUNK_CHARS])
    sent(router, 1, TEXT[: 3 * CHUNK_CHARS])
    router.open = [0, 5]
    assert router.choose(TEXT[: 4 * CHUNK_CHARS]) == 1


def test_the_same_chunk_at_another_place_is_no_prefix() -> None:
    router = PrefixAware(2)
    with router.placed("a" * CHUNK_CHARS + "b" * CHUNK_CHARS) as first:
        assert router.choose("b" * CHUNK_CHARS) == 1 - first


def test_a_prefix_is_remembered_after_millions_of_tokens() -> None:
    router = PrefixAware(2)
    sent(router, 0, TEXT)
    # As much as 2 million tokens.
    sent(router, 0, "".join(f"{number:08x}" * 16 for number in range(60_000)))
    router.open = [5, 0]
    assert router.choose(TEXT) == 0


def test_what_was_sent_longest_ago_is_forgotten_from_its_end() -> None:
    router = PrefixAware(2, known_chunks=4)
    sent(router, 0, TEXT[: 4 * CHUNK_CHARS])
    sent(router, 0, "z" * 2 * CHUNK_CHARS)
    router.open = [5, 0]
    assert router.choose(TEXT[: 2 * CHUNK_CHARS]) == 0
    sent(router, 1, TEXT[: 3 * CHUNK_CHARS])
    router.open = [0, 5]
    assert router.choose(TEXT[: 4 * CHUNK_CHARS]) == 1


@given(
    st.sampled_from(KINDS),
    st.integers(1, 5),
    st.lists(st.text(max_size=3 * CHUNK_CHARS) | st.just("") | st.just("\ud800" * CHUNK_CHARS), max_size=30),
)
def test_any_prompt_has_a_place_and_all_ends_leave_nothing_open(
    kind: type[Router], engines: int, prompts: list[str]
) -> None:
    router = kind(engines)
    with ExitStack() as stack:
        places = [stack.enter_context(router.placed(prompt)) for prompt in prompts]
        assert sum(router.open) == len(prompts)
    assert all(0 <= place < engines for place in places)
    assert router.open == [0] * engines
