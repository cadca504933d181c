"""Prefixes that went through an engine: where their next call goes, and for how long that is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fleet import Site, call, engine, prefix

from parrot_manager.core.scheduling import APP_CENTRIC
from parrot_manager.core.scheduling.engines import EngineLoad
from parrot_manager.core.scheduling.passed import SHARE_OF_KV, UNKNOWN_KV_TOKENS, Passed

LONG = 2_000


@pytest.mark.parametrize("affinity", [True, False])
def test_the_second_call_of_a_prefix_goes_where_the_first_one_went(affinity: bool) -> None:
    site = Site.of(engine("a"), engine("b"), policy=replace(APP_CENTRIC, prefix_affinity=affinity))
    first, other = call("1", prompt=LONG + 50, prefixes=(prefix("p", LONG),)), call("2", prompt=LONG + 50)
    site.ready(first)
    site.place()
    site.ready(other)
    site.place()
    assert {site.engine_of(first), site.engine_of(other)} == {"a", "b"}
    site.end(first)
    second = call("3", prompt=LONG + 50, prefixes=(prefix("p", LONG),))
    site.end(other)
    # Where nothing at all was ever computed is not where it would go by load.
    site.ready(second)
    (placement,) = site.place()
    if affinity:
        assert site.engine_of(second) == site.engine_of(first)
        assert f"{LONG:,} of" in placement.reason


def test_memory_is_still_planned_for_what_is_only_perhaps_there() -> None:
    site = Site.of(engine("a", kv_tokens=3_000))
    first = call("1", prompt=LONG + 50, output=100, prefixes=(prefix("p", LONG),))
    site.ready(first)
    site.place()
    site.ready(call("2", prompt=LONG + 50, output=100, prefixes=(prefix("p", LONG),)))
    assert site.place() == []


def load_of(kv_tokens: int) -> EngineLoad:
    return EngineLoad(engine("a", kv_tokens=kv_tokens))


@pytest.mark.parametrize("kv_tokens", [20_000, 0])
def test_the_oldest_are_forgotten_before_they_are_more_than_memory_holds(kv_tokens: int) -> None:
    passed, load = Passed(64), load_of(kv_tokens)
    most = int(SHARE_OF_KV * kv_tokens) or UNKNOWN_KV_TOKENS
    kept = most // LONG
    for number in range(kept + 3):
        passed.note(load, call(prefixes=(prefix(f"p{number}", LONG),)))
    assert [passed.has(load, f"p{number}") for number in range(kept + 3)] == [False] * 3 + [True] * kept


def test_a_chain_is_counted_once_and_forgotten_from_its_end() -> None:
    passed, load = Passed(64), load_of(8_000)
    chain = (prefix("a", 1_000), prefix("ab", 3_000, pieces=2))
    for _ in range(5):
        passed.note(load, call(prefixes=chain))
    assert passed.has(load, "a")
    assert passed.has(load, "ab")
    passed.note(load, call(prefixes=(prefix("x", 2_000),)))
    assert passed.has(load, "a")
    assert not passed.has(load, "ab")


def test_short_and_incomplete_prefixes_are_not_worth_it() -> None:
    passed, load = Passed(64), load_of(8_000)
    pending = replace(prefix("pending", LONG), complete=False)
    passed.note(load, call(prefixes=(prefix("short", 63), pending)))
    assert not passed.has(load, "short")
    assert not passed.has(load, "pending")


def test_an_engine_that_leaves_takes_all_along() -> None:
    passed, load = Passed(64), load_of(8_000)
    passed.note(load, call(prefixes=(prefix("p", LONG),)))
    passed.leave(load)
    assert not passed.engines("p")
    passed.leave(load)
    passed.note(load, call(prefixes=(prefix("p", LONG),)))
    assert passed.has(load, "p")
