"""Where calls go: the placements the design names, with their answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.fleet import Site, call, engine, latency, prefix, throughput

from parrot_manager.core.model import EngineState, Load
from parrot_manager.core.scheduling import APP_CENTRIC, POLICIES

FOUR = [engine(f"e{n}") for n in range(4)]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_eight_throughput_calls_use_all_four_empty_engines(policy: object) -> None:
    site = Site.of(*FOUR, policy=policy)  # type: ignore[arg-type]
    site.ready(*(call(objective=throughput()) for _ in range(8)))
    site.place()
    assert site.counts() == dict.fromkeys(("e0", "e1", "e2", "e3"), 2)


def test_throughput_calls_keep_away_from_the_engine_of_a_latency_call() -> None:
    site = Site.of(*FOUR)
    urgent = call(objective=latency())
    site.ready(urgent, *(call(objective=throughput()) for _ in range(6)))
    site.place()
    light = site.engine_of(urgent)
    assert site.counts() == {f"e{n}": 1 if f"e{n}" == light else 2 for n in range(4)}


def test_throughput_calls_keep_away_when_the_latency_call_comes_later() -> None:
    site = Site.of(*FOUR)
    site.ready(*(call(objective=throughput()) for _ in range(6)))
    site.place()
    least = min(site.counts().values())
    urgent = call(objective=latency())
    site.ready(urgent)
    site.place()
    assert site.counts()[site.engine_of(urgent)] == least + 1
    site.ready(*(call(objective=throughput()) for _ in range(6)))
    site.place()
    assert site.counts()[site.engine_of(urgent)] == least + 1


def test_a_latency_call_caps_what_its_engine_may_hold_while_others_have_slack() -> None:
    site = Site.of(engine("e", capacity=64))
    site.ready(call(objective=latency()))
    site.place()
    site.ready(*(call(objective=throughput(), prompt=1_000) for _ in range(60)))
    site.place()
    line = site.fleet.engines["e"].pace.line
    assert line.step_ms(site.fleet.engines["e"].step_weight) <= APP_CENTRIC.latency_step_ms
    assert 2 < site.counts()["e"] < 20


def test_what_has_no_slack_left_is_not_kept_out_by_a_latency_call() -> None:
    site = Site.of(engine("e", capacity=64))
    site.ready(call(objective=latency()))
    site.place()
    site.ready(*(call(objective=throughput(start_ms=5_000), prompt=1_000) for _ in range(40)))
    site.place(now_ms=1_000)
    held_back = site.fleet.queued_calls()
    assert held_back
    site.fleet.report("e", Load())
    site.place(now_ms=6_000)
    assert site.fleet.queued_calls() == 0


def test_a_group_larger_than_one_engine_runs_wholly_and_at_once_where_the_fleet_has_room() -> None:
    site = Site.of(*FOUR)
    site.ready(*(call(objective=latency(group="g")) for _ in range(24)))
    site.place()
    assert site.counts() == dict.fromkeys(("e0", "e1", "e2", "e3"), 6)


def test_a_group_larger_than_the_fleet_runs_wholly_before_what_ranks_lower() -> None:
    site = Site.of(engine("e0"), engine("e1"))
    members = [call("a", objective=latency(group="g")) for _ in range(24)]
    rivals = [call("b", objective=latency(start_ms=1_100, group="h")) for _ in range(24)]
    site.ready(*members, *rivals)
    site.place()
    while len(site.placed) < 48:
        site.end(next(p.call for p in site.placed if p.call.key in site.refs))
        site.place()
    assert [p.call.session_id for p in site.placed] == ["a"] * 24 + ["b"] * 24


def test_a_group_that_has_begun_is_finished_before_one_that_would_now_go_first() -> None:
    site = Site.of(engine("e0", capacity=8))
    site.ready(*(call("a", objective=latency(start_ms=2_000, group="g")) for _ in range(12)))
    site.place()
    site.ready(*(call("b", objective=latency(start_ms=1_000, group="h")) for _ in range(8)))
    for placement in site.placed[:8]:
        site.end(placement.call)
    site.place()
    assert [p.call.session_id for p in site.placed] == ["a"] * 12 + ["b"] * 4


def test_the_longest_member_of_a_group_goes_first() -> None:
    site = Site.of(engine("e0", capacity=1))
    site.ready(*(call(objective=latency(group="g"), output=output) for output in (20, 90, 50)))
    site.place()
    assert site.placed[0].call.max_tokens == 90


def test_followers_of_a_prefix_stick_to_its_engine_until_it_is_full() -> None:
    site = Site.of(*FOUR)
    shared = [prefix("p", 6_000)]
    calls = [call(f"s{n}", objective=latency(), prompt=6_050, output=30, prefixes=shared) for n in range(12)]
    site.ready(*calls)
    site.place()
    homes = [placement.engine_id for placement in site.placed]
    assert len(set(homes[:8])) == 1
    assert len(set(homes[8:])) == 1
    assert homes[8] != homes[0]


def test_followers_find_the_engine_that_holds_their_prefix_after_it_was_filled() -> None:
    site = Site.of(*FOUR)
    shared = [prefix("p", 4_000)]
    late = call("s2", objective=latency(), prompt=4_100, prefixes=shared)
    site.fleet.expect(late)
    first = call("s1", objective=latency(), prompt=4_100, prefixes=shared)
    site.ready(first)
    site.place()
    site.end(first)
    site.ready(*(call("other", objective=latency()) for _ in range(3)), late)
    site.place()
    assert site.engine_of(late) == site.engine_of(first)
    assert "4,000 of 4,100 tokens in KV" in site.placed[-1].reason or any(
        "4,000 of 4,100 tokens in KV" in p.reason for p in site.placed
    )


def test_a_prefix_is_left_when_another_engine_is_cheaper_even_so() -> None:
    site = Site.of(engine("hot", capacity=64), engine("cold", capacity=64))
    shared = [prefix("p", 200)]
    site.ready(*(call(objective=latency(), prompt=300, prefixes=shared) for _ in range(40)))
    site.place()
    assert min(site.counts().values()) >= 10
    assert all("p" in load.homes for load in site.fleet.engines.values())


def test_a_decision_says_why() -> None:
    site = Site.of(engine("e0"), engine("e1"))
    shared = [prefix("p", 1_480)]
    calls = [call(objective=latency(), prompt=1_520, output=20, prefixes=shared) for _ in range(2)]
    site.ready(*calls)
    site.place()
    reason = site.placed[1].reason
    assert reason.startswith(f"{site.engine_of(calls[0])}: 1,480 of 1,520 tokens in KV, ")
    assert " s against " in reason


def test_no_plan_exceeds_the_kv_memory() -> None:
    site = Site.of(engine("e", capacity=64, kv_tokens=2_000))
    site.ready(*(call(objective=latency(), prompt=500, output=100) for _ in range(10)))
    site.place()
    assert site.counts() == {"e": 3}


def test_a_shared_prefix_is_counted_once() -> None:
    site = Site.of(engine("e", capacity=64, kv_tokens=4_000))
    shared = [prefix("p", 2_000)]
    site.ready(*(call(objective=latency(), prompt=2_100, output=100, prefixes=shared) for _ in range(20)))
    site.place()
    assert site.counts() == {"e": 10}


def test_a_call_that_fits_nowhere_goes_to_an_engine_where_nothing_runs() -> None:
    site = Site.of(engine("e", capacity=64, kv_tokens=1_000))
    large = call(objective=latency(start_ms=0), prompt=2_000)
    small = call(objective=latency(start_ms=500))
    site.ready(small)
    site.place()
    site.ready(large)
    assert not site.place()
    site.end(small)
    site.place()
    assert site.engine_of(large) == "e"


def test_a_large_call_is_not_passed_for_ever() -> None:
    site = Site.of(engine("e", capacity=64, kv_tokens=1_000))
    running = [call(objective=latency(), prompt=300, output=100) for _ in range(2)]
    site.ready(*running)
    site.place()
    large = call(objective=latency(start_ms=0), prompt=800, output=100)
    site.ready(large)
    small = [call(objective=latency(start_ms=100), prompt=10, output=10) for _ in range(2)]
    site.ready(small[0])
    site.place(now_ms=1_000)
    assert site.engine_of(small[0]) == "e"
    site.ready(small[1])
    site.place(now_ms=20_000)
    assert site.engine_of(small[1]) == ""
    for one in (*running, small[0]):
        site.end(one)
    site.place(now_ms=21_000)
    assert site.engine_of(large) == "e"


def test_calls_of_all_sizes_that_are_long_overdue_are_all_served_and_the_room_is_used() -> None:
    draw = random.Random(1)
    site = Site.of(engine("a", 64, kv_tokens=6_000), engine("b", 64, kv_tokens=6_000))
    calls = [
        call(f"s{n}", objective=latency(n), prompt=draw.choice([50, 500, 5_500]), output=100)
        for n in range(200)
    ]
    site.ready(*calls)
    now_ms, least = 100_000, 10**9
    while len(site.placed) < len(calls):
        now_ms += 10
        site.place(now_ms)
        running = [placement.call for placement in site.placed if placement.call.key in site.refs]
        least = min(least, len(running))
        site.end(draw.choice(running), now_ms)
    assert least >= 1
    assert site.fleet.queued_calls() == 0


def test_a_draining_engine_takes_nothing_and_a_model_only_its_own() -> None:
    site = Site.of(engine("a", model="m"), engine("b", model="n"))
    one, other, third = call(model="n"), call(model=""), call(model="m")
    site.fleet.update(replace(engine("a"), state=EngineState.DRAINING))
    site.ready(one, other, third)
    site.place()
    assert (site.engine_of(one), site.engine_of(other), site.engine_of(third)) == ("b", "b", "")
    assert site.fleet.asked_models() == ["m"]
    assert not site.fleet.serving("m")


def test_what_another_manager_runs_on_an_engine_takes_its_place_too() -> None:
    site = Site.of(engine("e", capacity=4))
    site.fleet.report("e", Load(running=3))
    site.ready(call(), call())
    site.place()
    assert site.counts() == {"e": 1}


def test_a_lost_engine_gives_back_what_it_ran_and_what_comes_goes_elsewhere() -> None:
    site = Site.of(engine("a"), engine("b"))
    calls = [call(objective=latency()) for _ in range(4)]
    site.ready(*calls)
    site.place()
    lost = site.fleet.leave("a")
    assert sorted(lost) == sorted(site.refs[one.key] for one in calls if site.engine_of(one) == "a")
    site.ready(*(one for one in calls if site.engine_of(one) == "a"))
    site.place()
    assert site.counts() == {"b": 4}


def test_room_that_is_no_longer_kept_is_found_by_those_who_looked_meanwhile() -> None:
    """The call it was kept for is cancelled, and nothing else changes."""
    site = Site.of(engine("e", kv_tokens=10_000))
    site.ready(call(objective=latency(0), prompt=5_000))
    site.place()
    holder = call("big", objective=latency(0), prompt=6_000)
    site.ready(holder)
    site.place(now_ms=60_000)
    small = call("small", objective=latency(0), prompt=500)
    site.ready(small)
    site.place(now_ms=60_000)
    assert site.engine_of(small) == ""
    site.fleet.forget_call(*holder.key)
    site.place(now_ms=60_001)
    assert site.engine_of(small) == "e"


def test_a_call_that_was_not_tried_for_long_finds_the_one_engine_where_it_fits() -> None:
    """More engines changed meanwhile than it looks at in one step, and then none does."""
    engines = [engine(f"e-{n:03}", kv_tokens=10_000) for n in range(200)]
    site = Site.of(*engines)
    running = [call(objective=latency(0), prompt=9_000) for _ in engines]
    site.ready(*running)
    site.place()
    big = call("big", objective=latency(0), prompt=5_000)
    site.ready(big)
    site.place(now_ms=1)
    roomy = site.engine_of(running[100])
    others = [one.id for one in engines if one.id != roomy]
    for name in others[:100]:
        site.fleet.report(name, Load())
    site.end(running[100])
    for name in others[100:]:
        site.fleet.report(name, Load())
    for _ in range(20):
        site.place(now_ms=2)
    assert site.engine_of(big) == roomy


@pytest.mark.parametrize("group", ["", "g"])
def test_calls_that_avoid_the_only_free_engine_keep_nobody_from_it(group: str) -> None:
    site = Site.of(engine("busy", capacity=1))
    site.ready(call())
    site.place()
    site.fleet.join(engine("free", capacity=8))
    objective = latency(group=group)
    refused = [
        replace(call(objective=objective, prompt=900), avoid=frozenset({"free"}))
        for _ in range(3 * APP_CENTRIC.lookahead)
    ]
    allowed = call(objective=objective)
    site.ready(*refused, allowed)
    assert [placement.call for placement in site.place()] == [allowed]
    assert site.engine_of(allowed) == "free"


def test_calls_that_failed_on_every_engine_go_where_they_can() -> None:
    site = Site.of(engine("e"))
    again = replace(call(objective=latency()), avoid=frozenset({"e"}))
    site.ready(again)
    site.place()
    assert site.engine_of(again) == "e"
