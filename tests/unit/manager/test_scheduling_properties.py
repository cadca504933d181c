"""What holds of the scheduler whatever happens."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet import Site, call, engine, prefix

from parrot_manager.core.criteria import Objective, ObjectiveKind
from parrot_manager.core.model import EngineState, Load
from parrot_manager.core.scheduling import POLICIES, QueuedCall, SchedulingPolicy
from parrot_manager.core.scheduling.engines import EngineLoad

KV_TOKENS = 3_000


def random_call(draw: random.Random, now_ms: int) -> QueuedCall:
    """Any call."""
    kind = draw.choice(list(ObjectiveKind))
    start = now_ms + draw.randrange(-5_000, 20_000)
    group = draw.choice(["", "", "g", "h"]) if kind is ObjectiveKind.LATENCY else ""
    objective = Objective(
        kind, group, "", start + 500, start, draw.randrange(5_000), end_ms=start + draw.randrange(9_000),
        ideal_ms=draw.randrange(20_000), members=3 if group else 1,
    )  # fmt: skip
    prompt = draw.choice([20, 200, 700, 2_500])
    chain = [prefix(f"p{draw.randrange(3)}", prompt // 2), prefix(f"q{draw.randrange(9)}", prompt, pieces=2)]
    return call(
        draw.choice("abc"),
        tenant=draw.choice("xyz"),
        objective=draw.choice([objective, objective, None]),
        prompt=prompt,
        output=draw.choice([5, 100, 300]),
        prefixes=chain,
        model=draw.choice(["m", "n", ""]),
        ready_ms=now_ms,
    )


class Life:
    """Calls come, go and are taken back; engines come, drain and die; the books are checked all along."""

    def __init__(self, seed: int, policy: SchedulingPolicy) -> None:
        self.draw = random.Random(seed)
        self.site = Site.of(policy=policy)
        self.now_ms = 0
        self.queued: dict[tuple[str, str], QueuedCall] = {}
        self.engines = 0

    def run(self, steps: int) -> list[tuple[tuple[str, str], str]]:
        """So many things happen; what was placed where."""
        for _ in range(2):
            self.join()
        moves = [self.come, self.come, self.come, self.end, self.end, self.withdraw, self.again, self.report]
        for _ in range(steps):
            self.now_ms += self.draw.randrange(500)
            self.draw.choices([*moves, self.join, self.drain, self.lose], [*[20] * len(moves), 4, 2, 2])[0]()
            for placement in self.site.place(self.now_ms):
                assert placement.call.key in self.queued, "only what waits is placed"
                del self.queued[placement.call.key]
            self.site.fleet.drain_keeps()
            self.check()
        return [(placement.call.key, placement.engine_id) for placement in self.site.placed]

    # What happens.

    def come(self) -> None:
        one = random_call(self.draw, self.now_ms)
        if self.draw.random() < 0.2:
            self.site.fleet.expect(one)
            return
        self.queued[one.key] = one
        self.site.ready(one)

    def end(self) -> None:
        running = [p.call for p in self.site.placed if p.call.key in self.site.refs]
        if running:
            self.site.end(self.draw.choice(running), self.now_ms, self.draw.randrange(1, 300))

    def withdraw(self) -> None:
        if self.queued:
            key = self.draw.choice(list(self.queued))
            del self.queued[key]
            self.site.fleet.forget_call(*key)

    def again(self) -> None:
        if self.queued:
            one = random_call(self.draw, self.now_ms)
            key = self.draw.choice(list(self.queued))
            self.queued[key] = replace(self.queued[key], objective=one.objective)
            self.site.ready(self.queued[key])

    def report(self) -> None:
        for name in self.site.fleet.engines:
            load = Load(self.draw.randrange(4), step_ms=self.draw.uniform(5, 200))
            self.site.fleet.report(name, load)

    def join(self) -> None:
        self.engines += 1
        model = self.draw.choice("mn")
        self.site.fleet.join(engine(f"e{self.engines}", self.draw.choice([1, 3, 20]), model, KV_TOKENS))

    def drain(self) -> None:
        if self.site.fleet.engines:
            name = self.draw.choice(list(self.site.fleet.engines))
            found = self.site.fleet.engines[name].engine
            self.site.fleet.update(replace(found, state=EngineState.DRAINING))

    def lose(self) -> None:
        if self.site.fleet.engines:
            for ref in self.site.fleet.leave(self.draw.choice(list(self.site.fleet.engines))):
                key = ref.session_id, ref.call_id
                del self.site.refs[key]
                self.site.fleet.forget_call(*key)

    # What holds.

    def check(self) -> None:
        assert self.site.fleet.queued_calls() == len(self.queued)
        for load in self.site.fleet.engines.values():
            self.check_engine(load)

    def check_engine(self, load: EngineLoad) -> None:
        assert len(load.running) <= load.engine.capacity
        assert load.private_tokens == sum(booking.private_tokens for booking in load.running.values())
        held = Counter(name for booking in load.running.values() for name in booking.held)
        assert {name: home.users for name, home in load.homes.items() if home.users} == {
            name: users for name, users in held.items() if name in load.homes
        }
        used = sum(home.own_tokens for home in load.homes.values() if home.users)
        assert load.used_tokens == used
        if len(load.running) > 1:
            assert load.private_tokens <= KV_TOKENS, "no plan over budget"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_books_are_right_and_no_plan_exceeds_them_whatever_happens(
    policy: SchedulingPolicy, seed: int
) -> None:
    Life(seed, policy).run(80)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_the_same_events_give_the_same_decisions(seed: int) -> None:
    runs = []
    for _ in range(2):
        life = Life(seed, POLICIES["app_centric"])
        placed = life.run(60)
        first = min((int(key[1][2:]) for key, _ in placed), default=0)
        runs.append([(int(key[1][2:]) - first, engine_id) for key, engine_id in placed])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_whatever_waits_is_placed_once_the_rest_has_ended(policy: SchedulingPolicy, seed: int) -> None:
    """No call is forgotten, too large for ever, or passed for ever."""
    life = Life(seed, policy)
    life.run(60)
    site = life.site
    for model in "mn":
        site.fleet.join(engine(f"last-{model}", 4, model, KV_TOKENS))
    for _ in range(3 * len(life.queued) + 10):
        life.now_ms += 1_000
        site.place(life.now_ms)
        for name in list(site.fleet.engines):
            site.fleet.report(name, Load())
        for placement in [p for p in site.placed if p.call.key in site.refs]:
            site.end(placement.call, life.now_ms)
    assert site.fleet.queued_calls() == 0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), members=st.integers(2, 30))
def test_nothing_of_its_tenant_passes_a_group_that_has_begun(seed: int, members: int) -> None:
    """A group is never left half placed: until it is whole, nothing else of its tenant goes."""
    draw = random.Random(seed)
    site = Site.of(engine("e0", 3), engine("e1", 2))
    group = Objective(ObjectiveKind.LATENCY, "g", "", 9_000, 8_000, 1_000, members=members)
    calls = [call("grouped", objective=group, output=draw.randrange(10, 200)) for _ in range(members)]
    site.ready(*calls)
    begun = whole = False
    while not whole:
        site.ready(
            call("other", objective=replace(group, group="", latest_start_ms=draw.randrange(1_000, 20_000)))
        )
        for placement in site.place():
            if begun:
                assert placement.call.session_id == "grouped"
            begun = begun or placement.call.session_id == "grouped"
            whole = sum(p.call.session_id == "grouped" for p in site.placed) == members
            if whole:
                break
        running = [p.call for p in site.placed if p.call.key in site.refs]
        site.end(draw.choice(running))
