"""What is shared, what is kept in KV and for how long, and consumers that are sent ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.fleet import Site, call, engine, latency, prefix, throughput

from parrot_manager.core.commands import ExpectUses, FreeContexts
from parrot_manager.core.criteria import Objective
from parrot_manager.core.model import Load, Ref, SharedContext
from parrot_manager.core.scheduling import APP_CENTRIC, Pending, QueuedCall
from parrot_manager.core.scheduling.books import Books
from parrot_manager.core.scheduling.contexts import KEPT
from parrot_manager.core.scheduling.edges import Edges

CHAIN = (prefix("p1", 200), prefix("p2", 900, pieces=2), prefix("p3", 1_000, pieces=3))


def user(session: str = "s", chain: tuple[object, ...] = CHAIN, **more: object) -> QueuedCall:
    return call(session, objective=latency(), prompt=1_000, prefixes=chain, **more)  # type: ignore[arg-type]


def freed(site: Site) -> list[str]:
    return [
        name
        for told in site.fleet.drain_keeps()
        if isinstance(told, FreeContexts)
        for name in told.context_ids
    ]


def test_what_nobody_else_uses_is_not_shared() -> None:
    site = Site.of(engine("e"))
    site.ready(user())
    assert site.place()[0].shares == ()


def test_a_prompt_is_shared_up_to_the_longest_prefix_that_another_waits_for() -> None:
    site = Site.of(engine("e"))
    site.fleet.expect(user(chain=(*CHAIN[:2], prefix("other", 1_100, pieces=3))))
    site.ready(user())
    shares = site.place()[0].shares
    assert [(share.pieces, share.prefix_hash) for share in shares] == [(1, "p1"), (2, "p2")]


def test_a_prefix_is_not_shared_beyond_an_input_without_a_value() -> None:
    site = Site.of(engine("e"))
    chain = (CHAIN[0], replace(CHAIN[1], complete=False), replace(CHAIN[2], complete=False))
    site.ready(user(chain=chain), user(chain=chain))
    assert [share.prefix_hash for share in site.place()[0].shares] == ["p1"]


def test_a_short_prefix_is_not_worth_a_context() -> None:
    site = Site.of(engine("e"))
    short = (prefix("p", APP_CENTRIC.share_tokens - 1),)
    site.ready(user(chain=short), user(chain=short))
    assert {placement.shares for placement in site.place()} == {()}


def test_the_policy_without_affinity_shares_nothing() -> None:
    site = Site.of(engine("e"), policy=replace(APP_CENTRIC, prefix_affinity=False))
    site.ready(user(), user())
    assert {placement.shares for placement in site.place()} == {()}


def test_a_context_is_kept_for_a_waiting_call_and_its_last_user_frees_it() -> None:
    site = Site.of(engine("e"))
    first, second = user(), user()
    site.fleet.expect(second)
    site.ready(first)
    site.place()
    site.end(first)
    assert freed(site) == []
    site.ready(second)
    site.place()
    site.end(second)
    assert sorted(freed(site)) == ["p1", "p2", "p3"]
    assert not site.fleet.engines["e"].homes


def test_a_context_whose_last_waiting_user_is_cancelled_is_freed() -> None:
    site = Site.of(engine("e"))
    first, second = user(), user()
    site.fleet.expect(second)
    site.ready(first)
    site.place()
    site.end(first)
    site.fleet.forget_call(*second.key)
    assert sorted(freed(site)) == ["p1", "p2", "p3"]


def test_a_context_is_freed_where_its_last_waiting_user_did_not_go() -> None:
    site = Site.of(engine("a", capacity=1), engine("b", capacity=1))
    first, second, other = user(), user(), call(objective=latency())
    site.fleet.expect(second)
    site.ready(first)
    site.place()
    site.end(first)
    assert freed(site) == []
    site.ready(other)
    site.place(now_ms=60_000)
    assert site.engine_of(other) == site.engine_of(first)
    site.ready(second)
    site.place()
    assert site.engine_of(second) != site.engine_of(first)
    assert sorted(freed(site)) == ["p1", "p2", "p3"]
    assert not site.fleet.engines[site.engine_of(first)].homes


def test_what_several_sessions_used_is_kept_for_those_that_come() -> None:
    site = Site.of(engine("e", capacity=64))
    for number in range(3):
        one = user(f"s{number}")
        site.ready(one)
        site.place()
        site.end(one)
        assert freed(site) == []
    assert set(site.fleet.engines["e"].homes) == {"p1", "p2", "p3"}
    site.ready(user("s9"))
    assert site.place()[0].shares[-1].prefix_hash == "p3"


def test_so_many_contexts_are_kept_and_no_more() -> None:
    site = Site.of(engine("e", capacity=64))
    gone: list[str] = []
    for template in range(KEPT + 5):
        chain = (prefix(f"t{template}", 500),)
        for session in ("a", "b", "c"):
            one = user(session, chain)
            site.ready(one)
            site.place()
            site.end(one)
            gone += freed(site)
    assert gone == [f"t{n}" for n in range(5)]
    assert len(site.fleet.engines["e"].homes) == KEPT


def test_an_engine_is_told_when_its_contexts_are_used_next() -> None:
    site = Site.of(engine("e"))
    first, later = user(), user()
    site.fleet.expect(later)
    site.ready(first)
    shares = site.place()[0].shares
    assert {share.steps_to_next_use for share in shares} == {4.0}
    site.fleet.drain_keeps()
    site.ready(later)
    told = site.fleet.drain_keeps()
    assert told == [ExpectUses("e", (("p1", 0.0), ("p2", 0.0), ("p3", 0.0)))]
    assert site.fleet.drain_keeps() == []


def test_what_another_manager_made_is_used_and_never_freed() -> None:
    site = Site.of(engine("e"))
    site.fleet.contexts_changed("e", [SharedContext("id", "p1", 200, in_kv=True)], ())
    one = user()
    assert site.fleet.engines["e"].homes["p1"].mine is False
    site.fleet.expect(one)
    site.fleet.forget_call(*one.key)
    assert freed(site) == []


def test_a_context_the_engine_dropped_is_no_reason_to_go_there() -> None:
    site = Site.of(engine("a"), engine("b"))
    site.fleet.contexts_changed("b", [SharedContext("p1", "p1", 200, in_kv=True)], ())
    site.fleet.contexts_changed("b", [], ["p1"])
    one = user()
    site.ready(one)
    assert site.place()[0].reason.startswith("a: 0 of 1,000 tokens in KV")


# Streaming edges.


def edge(site: Site, producer: QueuedCall, **more: object) -> QueuedCall:
    ref = site.refs[producer.key]
    return call(producer.session_id, objective=latency(), pending=(Pending("v", ref),), **more)  # type: ignore[arg-type]


def test_a_consumer_with_much_to_prefill_goes_ahead_and_by_preference_to_its_producers_engine() -> None:
    site = Site.of(engine("a", kv_tokens=100_000), engine("b", kv_tokens=100_000))
    producers = [call(objective=latency(), output=400) for _ in range(2)]
    site.ready(*producers)
    site.place()
    assert site.counts() == {"a": 1, "b": 1}
    consumer = edge(site, producers[1], prompt=3_000)
    site.ready(consumer)
    placed = site.place()
    assert [(p.call.key, p.engine_id) for p in placed] == [(consumer.key, site.engine_of(producers[1]))]
    assert placed[0].pending == (("v", 128),)
    assert "hidden behind" in placed[0].reason


def test_a_consumer_goes_ahead_to_an_engine_where_it_does_not_hold_its_producer_up() -> None:
    site = Site.of(engine("a", kv_tokens=100_000), engine("b", kv_tokens=100_000))
    for name in "ab":
        site.fleet.report(name, Load(step_ms=10, prefill_token_ms=0.125, piece_token_ms=0.2))
    producer = call(objective=latency(), output=400)
    site.ready(producer)
    site.place()
    consumer = edge(site, producer, prompt=3_000)
    site.ready(consumer)
    (placed,) = site.place()
    assert placed.engine_id != site.engine_of(producer)


def test_no_consumer_goes_ahead_when_the_policy_says_so() -> None:
    site = Site.of(engine("a"), policy=replace(APP_CENTRIC, streaming_edges=False))
    producer = call(objective=latency(), output=400)
    site.ready(producer)
    site.place()
    site.ready(edge(site, producer, prompt=3_000))
    assert site.place() == []


def test_no_consumer_goes_ahead_into_kv_that_runs_short() -> None:
    site = Site.of(engine("a", kv_tokens=4_000))
    producer = call(objective=latency(), prompt=500, output=400)
    site.ready(producer)
    site.place()
    site.ready(edge(site, producer, prompt=3_000))
    assert site.place() == []


def test_no_consumer_takes_a_place_that_a_call_with_its_inputs_waits_for() -> None:
    site = Site.of(engine("a", capacity=2))
    producers = [call(objective=latency(), output=400) for _ in range(2)]
    site.ready(*producers)
    site.place()
    waiting = call(objective=latency())
    consumer = edge(site, producers[0], prompt=3_000)
    site.ready(waiting, consumer)
    assert site.place() == []
    site.end(producers[1])
    assert [placement.call.key for placement in site.place()] == [waiting.key]


@pytest.mark.parametrize("kind", [latency, throughput])
def test_calls_that_can_wait_keep_back_only_consumers_that_can_too(
    kind: Callable[[], Objective],
) -> None:
    site = Site.of(engine("a", capacity=8))
    producer = call(objective=latency(), output=400)
    site.ready(producer)
    site.place()
    # Steps would get too long with it while the producer is answered.
    patient = call(objective=throughput(), prompt=20_000)
    consumer = replace(edge(site, producer, prompt=3_000), objective=kind())
    site.ready(patient, consumer)
    assert [placement.call.key for placement in site.place()] == ([consumer.key] if kind is latency else [])


@pytest.mark.parametrize("kind", [latency, throughput])
def test_a_consumer_goes_ahead_however_many_run_there_that_are_more_patient(
    kind: Callable[[], Objective],
) -> None:
    site = Site.of(engine("a", capacity=64))
    producer = call(objective=replace(latency(), ideal_ms=60_000), output=400)
    site.ready(producer, *(call(objective=replace(kind(), ideal_ms=0), prompt=10) for _ in range(30)))
    site.place()
    assert site.counts()["a"] > 20
    consumer = replace(edge(site, producer, prompt=3_000), objective=replace(latency(), ideal_ms=60_000))
    site.ready(consumer)
    assert [placement.call.key for placement in site.place()] == ([] if kind is latency else [consumer.key])


def test_a_consumer_that_went_ahead_takes_a_place_when_its_inputs_have_come() -> None:
    site = Site.of(engine("a", capacity=2))
    producer = call(objective=latency(), output=400)
    site.ready(producer)
    site.place()
    consumer = edge(site, producer, prompt=3_000)
    site.ready(consumer)
    site.place()
    assert site.fleet.engines["a"].free == 1
    site.fleet.arrived(site.refs[consumer.key])
    assert site.fleet.engines["a"].free == 0


def test_a_consumer_whose_producer_is_gone_is_not_sent() -> None:
    site = Site.of(engine("a"))
    site.ready(call(objective=latency(), prompt=3_000, pending=(Pending("v", Ref("s", "gone", 1)),)))
    assert site.place() == []
    assert site.fleet.asked_models() == ["m"]


def again(site: Site, running: QueuedCall, *, number: int = 1) -> None:
    """The engine attaches anew: it runs a call still, and holds its contexts."""
    ref = Ref(*running.key, number)
    site.refs[running.key] = ref
    held = [SharedContext(one.hash, one.hash, one.tokens, True) for one in running.prefixes]
    site.fleet.join(engine("e"), [ref], held)
    site.fleet.adopt("e", ref, running)


def test_contexts_of_an_engine_that_attached_anew_are_freed_by_their_last_user() -> None:
    site = Site.of(engine("e"))
    running, waiting = user(), user()
    site.fleet.expect(waiting)
    site.ready(running)
    site.place()
    site.fleet.leave("e")
    again(site, running)
    site.end(running)
    assert freed(site) == []
    site.fleet.forget_call(*waiting.key)
    assert sorted(freed(site)) == ["p1", "p2", "p3"]


def test_contexts_that_nobody_runs_in_when_their_engine_attaches_anew_are_freed_too() -> None:
    site = Site.of(engine("e"))
    first, waiting = user(), user()
    site.fleet.expect(waiting)
    site.ready(first)
    site.place()
    site.end(first)
    site.fleet.leave("e")
    site.fleet.join(engine("e"), (), [SharedContext("p1", "p1", 200, True)])
    site.fleet.forget_call(*waiting.key)
    assert freed(site) == ["p1"]


def test_an_adopted_attempt_runs_in_the_contexts_that_are_there() -> None:
    """As after a take-over: this manager has never placed anything there."""
    site = Site.of()
    running = user()
    again(site, running)
    load = site.fleet.engines["e"]
    assert {name: home.users for name, home in load.homes.items()} == {"p1": 1, "p2": 1, "p3": 1}
    assert load.idle_tokens == 0
    assert load.private_tokens == site.fleet.estimates.output(running).q50
    site.fleet.freed("e", site.refs[running.key])
    assert sorted(freed(site)) == ["p1", "p2", "p3"]


def test_a_context_that_was_never_filled_draws_nobody() -> None:
    """Its attempt was cancelled first, and the prefix recurs, so that it is not given up."""
    site = Site.of(engine("e"))
    for session in ("r", "s", "t"):
        site.ready(one := user(session))
        shares = site.place()[0].shares
        site.fleet.freed("e", site.refs[one.key])
        site.fleet.forget_call(*one.key)
    load, later = site.fleet.engines["e"], user("u")
    assert len(shares) == len(CHAIN)
    assert load.idle_tokens == 0
    site.ready(later)
    assert "0 of 1,000 tokens in KV" in site.place()[0].reason
    site.end(later)
    site.ready(user("v"))
    assert ": 1,000 of 1,000 tokens in KV" in site.place()[0].reason


def test_a_context_is_there_once_its_engine_said_so_however_its_attempt_ended() -> None:
    site = Site.of(engine("e"))
    first, second = user(), user()
    site.fleet.expect(second)
    site.ready(first)
    site.place()
    site.fleet.freed("e", site.refs[first.key])
    contexts = [SharedContext(one.hash, one.hash, one.tokens, True) for one in CHAIN]
    site.fleet.contexts_changed("e", contexts, ())
    site.ready(second)
    assert ": 1,000 of 1,000 tokens in KV" in site.place()[0].reason


def test_calls_that_may_be_sent_ahead_are_looked_at_in_turns() -> None:
    books = Books(APP_CENTRIC)
    edges = Edges(books)
    gone = Ref("s", "c-0", 1)
    calls = [call(pending=(Pending("v", gone),)) for _ in range(20_000)]
    for one in calls:
        edges.add(one)
    for _ in range(1_000):
        assert edges.place(0) == []
    assert edges.calls() == [*calls[16_000:], *calls[:16_000]]
