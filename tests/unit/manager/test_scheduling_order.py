"""Who goes first: slack, classes, applications near their end, and tenants that do not delay one another."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from tests.support.fleet import Site, call, engine, latency, throughput

from parrot_manager.core.criteria import Objective, ObjectiveKind
from parrot_manager.core.estimates import Lengths
from parrot_manager.core.scheduling import APP_CENTRIC, POLICIES, QueuedCall, SchedulingPolicy
from parrot_manager.core.scheduling.fairness import REMEMBERED, Fairness
from parrot_manager.core.scheduling.policies import Limits
from parrot_manager.core.scheduling.queue import DEAD, Entry
from parrot_runtime import errors


def one_by_one(calls: list[QueuedCall], now_ms: int = 0, policy: SchedulingPolicy = APP_CENTRIC) -> list[str]:
    """The sessions of calls in the order in which an engine with one place takes them."""
    site = Site.of(engine("e", capacity=1), policy=policy)
    site.ready(*calls)
    while site.fleet.queued_calls():
        placed = site.place(now_ms)
        assert len(placed) == 1
        site.end(placed[0].call)
    return [placement.call.session_id for placement in site.placed]


def test_the_call_with_least_slack_goes_first() -> None:
    calls = [
        call(name, objective=latency(start)) for name, start in (("b", 9_000), ("a", 2_000), ("c", 20_000))
    ]
    assert one_by_one(calls) == ["a", "b", "c"]


def test_latency_goes_before_throughput_that_has_slack() -> None:
    calls = [call("batch", objective=throughput(50_000)), call("chat", objective=latency(90_000))]
    assert one_by_one(calls) == ["chat", "batch"]


@pytest.mark.parametrize("objectives", [True, False])
def test_engines_are_told_to_keep_steps_short_while_those_in_a_hurry_are_answered(objectives: bool) -> None:
    site = Site.of(engine("e", capacity=4), policy=replace(APP_CENTRIC, objectives=objectives))
    read = replace(latency(80_000), kind=ObjectiveKind.TTFT)
    site.ready(
        call("batch", objective=throughput(50_000)),
        call("agent", objective=latency(90_000)),
        call("chat", objective=read),
    )
    told = {one.call.session_id: (one.step_ms, one.beside_share) for one in site.place()}
    step_ms, share = APP_CENTRIC.step_ms, APP_CENTRIC.beside_share
    wanted = {"agent": (step_ms, share), "chat": (step_ms, 0), "batch": (0, 0)}
    assert told == (wanted if objectives else dict.fromkeys(wanted, (0, 0)))


def test_inside_equal_slack_the_session_nearest_its_end_goes_first() -> None:
    calls = [
        call(name, objective=latency(5_000, remaining_ms=left))
        for name, left in (("far", 9_000), ("near", 500))
    ]
    assert one_by_one(calls) == ["near", "far"]
    swapped = replace(APP_CENTRIC, app_order=False)
    assert one_by_one([replace(one, ready_ms=n) for n, one in enumerate(calls)], policy=swapped) == [
        "far",
        "near",
    ]


def test_what_would_be_far_too_late_goes_behind_what_can_end_in_time() -> None:
    hopeless = Objective(ObjectiveKind.LATENCY, "", "", 2_000, 1_000, 500, end_ms=1_000, ideal_ms=500)
    hopeful = Objective(ObjectiveKind.LATENCY, "", "", 9_000, 8_000, 1_000, end_ms=9_000)
    calls = [call("lost", objective=hopeless), call("saved", objective=hopeful)]
    assert one_by_one(calls, now_ms=3_000) == ["saved", "lost"]


def test_a_deadline_goes_by_when_it_has_to_start() -> None:
    due = Objective(ObjectiveKind.DEADLINE, latest_finish_ms=4_000, latest_start_ms=1_500, remaining_ms=100)
    calls = [call("chat", objective=latency(3_000)), call("due", objective=due)]
    assert one_by_one(calls) == ["due", "chat"]


@pytest.mark.parametrize("name", ["request_fifo", "request_least_loaded", "prefix_affinity_only"])
def test_request_policies_go_by_when_calls_became_ready(name: str) -> None:
    calls = [
        call("late", objective=latency(0), ready_ms=9),
        call("early", objective=throughput(), ready_ms=1),
    ]
    assert one_by_one(calls, policy=POLICIES[name]) == ["early", "late"]


def test_no_throughput_call_starves_however_many_latency_calls_come() -> None:
    """An overdue call with n others before it goes within (n + 1) * overdue_share placements."""
    site = Site.of(engine("e", capacity=1))
    patient = [call(f"batch{n}", objective=throughput(1_000 + 600 * n)) for n in range(5)]
    site.ready(*patient, call("chat", objective=latency(500)))
    now_ms = 10_000
    while site.fleet.queued_calls() and len(site.placed) < 1_000:
        placed = site.place(now_ms)
        site.ready(call("chat", objective=latency(now_ms)))
        site.end(placed[0].call)
        now_ms += 10
        if all(site.engine_of(one) for one in patient):
            break
    share = APP_CENTRIC.overdue_share
    for place, one in enumerate(patient):
        at = next(n for n, placement in enumerate(site.placed) if placement.call.key == one.key)
        assert at < (place + 1) * share


def served_before(site: Site, one: QueuedCall) -> float:
    """Tokens of service that others got before a call."""
    total = 0.0
    for placement in site.placed:
        if placement.call.key == one.key:
            return total
        total += placement.call.prompt_tokens + APP_CENTRIC.decode_weight * placement.call.max_tokens
    raise AssertionError(f"{one.key} was not placed")


@pytest.mark.parametrize("kind", [latency, throughput])
def test_a_saturated_tenant_delays_another_by_no_more_than_its_burst(kind: object) -> None:
    """And by the one call that is being placed when the burst is over."""
    site = Site.of(engine("e", capacity=1))
    flood = [call("flood", tenant="a", objective=latency(0), prompt=1_000, output=100) for _ in range(500)]
    site.ready(*flood)
    for _ in range(200):
        site.end(site.place(now_ms=1_000)[0].call)
    site.placed.clear()
    single = call("single", tenant="b", objective=kind(10**8), prompt=1_000, output=100)  # type: ignore[operator]
    site.ready(single)
    while not site.engine_of(single):
        site.end(site.place(now_ms=1_000)[0].call)
    assert served_before(site, single) <= APP_CENTRIC.burst_tokens + 1_400


def test_tenants_share_a_saturated_fleet_in_equal_parts_whatever_their_calls_are_like() -> None:
    site = Site.of(engine("e", capacity=4))
    for tenant, prompt in (("a", 2_000), ("b", 500), ("c", 100)):
        site.ready(*(call(tenant, tenant=tenant, objective=latency(), prompt=prompt) for _ in range(3_000)))
    served = dict.fromkeys("abc", 0.0)
    for _ in range(500):
        for placement in site.place():
            one = placement.call
            served[one.tenant] += one.prompt_tokens + APP_CENTRIC.decode_weight * one.max_tokens
            site.end(one)
    assert max(served.values()) - min(served.values()) <= 2 * APP_CENTRIC.burst_tokens


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    site = Site.of(engine("e", capacity=1))
    site.ready(*(call("a", tenant="a", objective=latency(), prompt=1_000) for _ in range(400)))
    for _ in range(200):
        site.end(site.place()[0].call)
    site.ready(*(call("b", tenant="b", objective=latency(), prompt=1_000) for _ in range(400)))
    site.placed.clear()
    for _ in range(100):
        site.end(site.place()[0].call)
    by_tenant = [placement.call.tenant for placement in site.placed]
    assert 30 <= by_tenant.count("a") <= 70


def test_a_tenant_with_one_slow_model_does_not_hold_up_another_model() -> None:
    site = Site.of(engine("e", model="m"), engine("f", model="n", capacity=1))
    site.ready(*(call("a", tenant="a", model="n", objective=latency()) for _ in range(5)))
    site.ready(*(call("b", tenant="b", model="m", objective=latency()) for _ in range(8)))
    site.place()
    assert site.counts() == {"e": 8, "f": 1}


def test_a_full_queue_refuses_with_numbers_and_takes_calls_again_when_some_have_ended() -> None:
    site = Site.of(policy=replace(APP_CENTRIC, limits=Limits(tenant_calls=3, total_calls=5)))
    calls = [call(tenant="a") for _ in range(3)]
    site.ready(*calls[:2])
    site.fleet.expect(calls[2])
    refused = site.fleet.refuse("a", 1)
    assert refused is not None
    assert refused.kind is errors.QUEUE_FULL
    assert "3 unfinished calls, and 1 more would exceed the limit of 3" in refused.message
    assert site.fleet.refuse("b", 2) is None
    too_many = site.fleet.refuse("b", 3)
    assert too_many is not None
    assert "3 calls wait here" in too_many.message
    site.fleet.forget_call(*calls[0].key)
    assert site.fleet.refuse("a", 1) is None


def test_a_call_said_again_is_queued_once_and_as_it_is_now() -> None:
    site = Site.of(engine("e", capacity=1))
    one, other = call("s", objective=latency(5_000)), call("t", objective=latency(2_000))
    site.ready(one, other)
    site.ready(replace(one, objective=latency(1_000)))
    assert site.fleet.queued_calls() == 2
    site.place()
    assert site.engine_of(one) == "e"


def test_a_withdrawn_call_is_not_placed() -> None:
    site = Site.of(engine("e"))
    one, other = call(), call()
    site.ready(one, other)
    site.fleet.withdraw(*one.key)
    site.fleet.withdraw(*one.key)
    assert [placement.call for placement in site.place()] == [other]


def test_a_call_keeps_away_from_an_engine_it_failed_on_while_another_is_there() -> None:
    site = Site.of(engine("a"), engine("b", capacity=1))
    one = replace(call(objective=latency()), avoid=frozenset({"a"}))
    blocker = replace(call(objective=latency(0)), avoid=frozenset({"a"}))
    site.ready(blocker, one)
    site.place()
    assert site.engine_of(one) == ""
    site.fleet.leave("b")
    site.place()
    assert site.engine_of(one) == "a"


def test_a_call_that_waits_long_for_one_engine_does_not_hold_up_the_others() -> None:
    site = Site.of(engine("a"), engine("b", capacity=1))
    picky = [replace(call("p", objective=latency(n)), avoid=frozenset({"a"})) for n in range(2)]
    site.ready(*picky)
    site.place(now_ms=60_000)
    other = call("o", objective=latency(100))
    site.ready(other)
    site.place(now_ms=61_000)
    assert site.engine_of(other) == "a"


@pytest.mark.parametrize("objective", [latency, throughput])
def test_a_model_whose_calls_find_no_room_does_not_hold_up_another_model(objective: object) -> None:
    """Its engine has places, but no memory: however many wait for it, and however little their tenant had."""
    site = Site.of(engine("a", 32, "m", kv_tokens=10_000), engine("b", 8, "n"))
    spent = call("spent", tenant="b", model="n", prompt=3 * APP_CENTRIC.burst_tokens)
    site.ready(call("big", tenant="a", objective=latency(0), prompt=9_800), spent)
    site.place()
    site.end(spent)
    site.ready(*(call("a", tenant="a", objective=latency(n), prompt=5_000) for n in range(12)))
    site.ready(other := call("b", tenant="b", model="n", objective=objective(50_000)))  # type: ignore[operator]
    site.place(now_ms=1)
    assert site.engine_of(other) == "b"


def test_a_turn_is_that_of_the_call_overdue_for_longest_whatever_groups_have_begun() -> None:
    """Overload by groups that are each hopeless before they are wholly placed."""
    site = Site.of(engine("e", capacity=1))

    def hurried(start_ms: int, group: str) -> Objective:
        return replace(latency(start_ms, group), end_ms=start_ms + 1_000, ideal_ms=1_000)

    site.ready(current := call(objective=latency(0)))
    site.place()
    now_ms = 200_000
    lone = call("lone", objective=throughput(100_000))
    for step in range(100):
        now_ms += 300
        if step % 10 == 0:
            site.ready(*(call("g", objective=hurried(now_ms, f"g-{step}")) for _ in range(30)))
        if step == 50:
            site.ready(lone)
        site.end(current, now_ms)
        current = site.place(now_ms)[0].call
        if current is lone:
            break
    assert current is lone
    assert step < 50 + APP_CENTRIC.overdue_share


def test_a_group_without_room_is_looked_through_once_a_step() -> None:
    site = Site.of(engine("e", capacity=64, kv_tokens=10_000))
    site.ready(call(objective=latency(0), prompt=9_800))
    site.place()
    site.ready(*(call("g", objective=latency(group="g"), prompt=5_000) for _ in range(200)))
    estimated: list[QueuedCall] = []
    output = site.fleet.estimates.output

    def counted(one: QueuedCall) -> Lengths:
        estimated.append(one)
        return output(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.fleet.estimates, "output", counted)
        assert site.place(now_ms=1) == []
    assert 200 <= len(estimated) < 2 * 200


def test_a_call_that_is_told_again_and_again_takes_no_more_memory() -> None:
    # No other test's session: what those leave behind is not this queue's.
    tenant_calls = [call("told-again", objective=latency(1_000 + n)) for n in range(100)]
    site = Site.of()
    for told in range(50):
        late = replace(latency(0, remaining_ms=10_000 + told), end_ms=1, ideal_ms=1)
        site.ready(*(replace(one, objective=late) for one in tenant_calls))
    gc.collect()
    # By type: to ask other objects for their class runs code of theirs, which may warn.
    queued = [one for one in gc.get_objects() if type(one) is Entry]
    queued = [one for one in queued if one.call.session_id == "told-again"]
    assert len(queued) <= 2 * len(tenant_calls) + DEAD + 1


def test_tenants_that_came_once_are_forgotten_and_the_busiest_are_not() -> None:
    fairness = Fairness()
    fairness.charge("busy", 1_000_000)
    for number in range(3 * REMEMBERED):
        fairness.charge(f"once-{number}", 1_000)
        assert len(fairness) <= REMEMBERED
    assert fairness.clock("busy") == 1_000_000
    assert fairness.clock("new") <= 1_000 * 3


def test_each_model_has_turns_of_its_own_whatever_the_rhythm_in_which_engines_come_free() -> None:
    models = ["m", "n", "o", "p"]
    site = Site.of(*(engine(f"e-{model}", 1, model) for model in models))
    running = {model: call(model=model, objective=latency(0)) for model in models}
    site.ready(*running.values())
    site.place()
    overdue = [call("overdue", model=model, objective=throughput(0)) for model in models]
    site.ready(*overdue)
    for step in range(APP_CENTRIC.overdue_share * len(models)):
        model, now_ms = models[step % len(models)], 10_000 + 10 * step
        site.ready(call("chat", model=model, objective=latency(now_ms)))
        site.end(running[model], now_ms)
        (placement,) = site.place(now_ms)
        running[model] = placement.call
    assert [site.engine_of(one) for one in overdue] == ["e-m", "e-n", "e-o", "e-p"]
