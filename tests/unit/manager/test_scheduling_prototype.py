"""What the prototype's scheduler gets wrong, each with the answer here."""

from __future__ import annotations

from dataclasses import replace

from tests.support.fleet import Site, call, engine, latency, prefix, throughput

from parrot_manager.core.model import SharedContext
from parrot_manager.core.scheduling import APP_CENTRIC, QueuedCall

FOUR = [engine(f"e{n}") for n in range(4)]


def test_eighteen_latency_calls_are_spread_and_none_waits_beside_an_engine_with_room() -> None:
    site = Site.of(*FOUR)
    site.ready(*(call(objective=latency()) for _ in range(18)))
    site.place()
    assert sorted(site.counts().values()) == [4, 4, 5, 5]


def test_throughput_calls_are_not_packed_onto_the_engine_of_a_latency_call() -> None:
    site = Site.of(engine("e0"), engine("e1"))
    urgent = call(objective=latency())
    site.ready(urgent)
    site.place()
    site.ready(*(call(objective=throughput()) for _ in range(3)))
    site.place()
    assert site.counts()[site.engine_of(urgent)] == 1


def test_a_prefix_is_followed_to_its_engine_though_another_is_idle() -> None:
    """Not the engine that happens to be more loaded, or less: the one that has the KV."""
    site = Site.of(engine("e1"), engine("e2"))
    site.ready(call(objective=latency(), prompt=50, output=10))
    site.place()
    busy = site.placed[0].engine_id
    site.fleet.contexts_changed(busy, [SharedContext("p", "p", 4_000, in_kv=True)], ())
    one = call(objective=latency(), prompt=4_050, output=10, prefixes=[prefix("p", 4_000)])
    site.ready(one)
    site.place(now_ms=60_000)
    assert site.engine_of(one) == busy


def test_a_group_beyond_one_engines_capacity_leaves_none_of_its_members_behind() -> None:
    site = Site.of(engine("e"))
    members = [call(objective=latency(group="g")) for _ in range(12)]
    site.ready(*members)
    site.place()
    while site.refs:
        site.end(next(one for one in members if one.key in site.refs))
        site.place()
    assert all(site.engine_of(one) == "e" for one in members)


def test_each_member_of_a_group_goes_to_an_engine_of_its_model() -> None:
    site = Site.of(engine("a", model="m"), engine("b", model="n"))
    members = [call(objective=latency(group="g"), model=model) for model in "mnmnn"]
    site.ready(*members, call(objective=latency(group="g"), model="nobody's"))
    site.place()
    for one in members:
        assert site.fleet.engines[site.engine_of(one)].engine.model == one.model
    assert site.fleet.asked_models() == ["nobody's"]


def test_the_members_of_a_latency_group_are_not_all_put_on_one_engine() -> None:
    site = Site.of(*FOUR)
    site.ready(*(call(objective=latency(group="g")) for _ in range(12)))
    site.place()
    assert set(site.counts().values()) == {3}


def test_an_engine_that_dies_takes_its_contexts_along_and_nothing_breaks() -> None:
    site = Site.of(engine("a"), engine("b"))
    shared = [prefix("p", 4_000)]
    first, second, third = (
        call(f"s{n}", objective=latency(), prompt=4_050, output=10, prefixes=shared) for n in range(3)
    )
    site.ready(first, second)
    site.place()
    home = site.engine_of(first)
    site.fleet.leave(home)
    site.fleet.drain_keeps()
    for one in (first, second):
        site.fleet.forget_call(*one.key)
    site.ready(third)
    site.place()
    assert site.engine_of(third) == ({"a", "b"} - {home}).pop()
    site.fleet.freed(home, site.refs[first.key])


def test_a_call_of_a_model_nobody_serves_stops_nobody_else() -> None:
    site = Site.of(engine("e"))
    site.ready(call(objective=latency(0), model="unknown"), call(objective=latency()))
    assert len(site.place()) == 1
    assert [one.model for one in site.fleet.queued("unknown")] == ["unknown"]


def test_everything_can_be_switched_off_by_itself() -> None:
    def order(**switches: bool) -> list[str]:
        site = Site.of(engine("e", capacity=1), policy=replace(APP_CENTRIC, **switches))  # type: ignore[arg-type]
        group = [
            call("grouped", objective=latency(5_000 + n, "g"), output=10 + n, ready_ms=n) for n in range(2)
        ]
        between: QueuedCall = call("between", objective=latency(5_000, remaining_ms=10), ready_ms=9)
        batch = call("batch", objective=throughput(), ready_ms=3, created_ms=-1)
        site.ready(*group, between, batch)
        while site.fleet.queued_calls():
            site.end(site.place()[0].call)
        return [placement.call.session_id for placement in site.placed]

    assert order() == ["between", "grouped", "grouped", "batch"]
    assert order(app_order=False) == ["grouped", "grouped", "between", "batch"]
    assert order(objectives=False) == ["batch", "between", "grouped", "grouped"]
    assert order(objectives=False, app_order=False) == ["grouped", "grouped", "batch", "between"]
