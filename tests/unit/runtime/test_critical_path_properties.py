"""Whatever the records say, the path has no gaps and sums to the whole; a replay begins from the truth."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.recorded import PARTS, START_MS, Script, delayed, random_scripts, run, without

from parrot_runtime.critical_path import Analysis, SessionTimes, Stage, analyse
from parrot_runtime.critical_path.building import build
from parrot_runtime.critical_path.records import BlockTimes, CallTimes, Lap, VariableTimes
from parrot_runtime.critical_path.replay import Replay

NEAR_MS = 1e-3
SEEDS = range(150)


def check(found: Analysis) -> None:
    """The path runs from begin to end without a gap, and its stages sum to the whole."""
    assert math.isclose(sum(found.stages.values()), found.total_ms, rel_tol=1e-9, abs_tol=NEAR_MS)
    if found.segments:
        assert found.segments[0].start_ms == found.start_ms
        assert found.segments[-1].end_ms == found.end_ms
        assert all(one.end_ms == other.start_ms for one, other in pairwise(found.segments))
    else:
        assert found.total_ms == 0
    assert all(one.change < 0 for one in found.what_ifs)


def check_replay(session: SessionTimes, now_ms: float) -> None:
    """Run again as it was, a session ends when it did."""
    network = build(session, now_ms)
    assert math.isclose(Replay(network).end_ms(), network.nodes[network.end_id].end_ms, abs_tol=NEAR_MS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_that_ran_is_explained_whole(seed: int) -> None:
    session = run(random_scripts(Random(seed)))
    found = analyse(session, START_MS)
    check(found)
    check_replay(session, START_MS)
    assert found.stages.get(Stage.UNEXPLAINED, 0.0) == 0


def test_what_would_have_been_is_what_then_is() -> None:
    misses: list[tuple[int, Stage, float]] = []
    asked = 0
    for seed in SEEDS:
        scripts = random_scripts(Random(seed))
        session = run(scripts, exact=True)
        found = {one.stage: one.total_ms for one in analyse(session, START_MS).what_ifs}
        whole_ms = session.ended_ms - START_MS
        for stage in set(PARTS.values()):
            then_ms = run(without(scripts, stage), exact=True).ended_ms - START_MS
            off_ms = abs(found.get(stage, whole_ms) - then_ms)
            asked += 1
            if off_ms > 0.1 * whole_ms:
                misses.append((seed, stage, off_ms))
    # Who is sent ahead, and who not any more, is another matter then; that is all that may differ.
    assert len(misses) <= 0.02 * asked, misses


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("delay_ms", [5.0, 50.0, 200.0])
@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_delay_adds_is_found_in_its_stage(part: str, delay_ms: float, ahead: bool) -> None:
    stage = PARTS[part]
    for seed in range(20):
        scripts = chain(Random(seed), ahead=ahead)
        before, after = (
            analyse(run(one, exact=True), START_MS) for one in (scripts, delayed(scripts, part, delay_ms))
        )
        grown_ms = after.total_ms - before.total_ms
        in_stage_ms = after.stages.get(stage, 0.0) - before.stages.get(stage, 0.0)
        if not ahead and part not in {"admission", "tail"}:
            assert grown_ms == pytest.approx(delay_ms * len(scripts) * (2 if part == "network" else 1))
        # Of what is done while a producer decodes, some is hidden, and then hides that producer's.
        assert in_stage_ms >= 0.95 * grown_ms - NEAR_MS


@pytest.mark.parametrize("delay_ms", [5.0, 50.0, 200.0])
def test_what_a_client_takes_is_the_clients(delay_ms: float) -> None:
    scripts = [Script(takes={"decode": 40.0}), Script(takes={"decode": 40.0}, after=0, client_ms=delay_ms)]
    found = analyse(run(scripts, exact=True), START_MS)
    assert found.stages[Stage.CLIENT] == pytest.approx(delay_ms)
    assert found.total_ms == pytest.approx(80 + delay_ms)


def chain(random: Random, *, ahead: bool) -> list[Script]:
    """Calls that each read the one before."""
    return [
        Script((number - 1,) if number else (), ahead, {name: random.uniform(1, 60) for name in PARTS})
        for number in range(6)
    ]


times = (
    st.floats(0, 1e13) | st.floats(START_MS, START_MS + 1e4) | st.sampled_from([0.0, START_MS, START_MS + 1])
)
names = st.sampled_from(["c-1", "c-2", "c-3", "b-1", "v1", "v2", "v3", "", "begin", "end"])
laps = st.builds(Lap, st.sampled_from(list(Stage)), st.floats(0, 1e12), names, names)
calls = st.builds(
    CallTimes,
    id=st.sampled_from(["c-1", "c-2", "c-3"]),
    name=st.just("f"),
    accepted_ms=times,
    block_id=st.sampled_from(["", "b-1", "b-2"]),
    by_client=st.booleans(),
    entered_ms=times,
    ready_ms=times,
    first_dispatched_ms=times,
    dispatched_ms=times,
    sent_ms=times,
    told_ms=times,
    ended_ms=times,
    laps=st.lists(laps, max_size=5).map(tuple),
    inputs=st.lists(names, max_size=3).map(tuple),
)
sessions = st.builds(
    SessionTimes,
    id=st.just("s"),
    created_ms=st.floats(START_MS, 1e13),
    opened_ms=times,
    settled_ms=times,
    closing_ms=times,
    ended_ms=times,
    lazy=st.booleans(),
    calls=st.lists(calls, max_size=4, unique_by=lambda call: call.id).map(tuple),
    variables=st.lists(
        st.builds(VariableTimes, names, names, times), max_size=4, unique_by=lambda variable: variable.id
    ).map(tuple),
    blocks=st.lists(
        st.builds(BlockTimes, st.just("b-1"), st.just("m"), times, times, times, st.lists(names).map(tuple)),
        max_size=1,
    ).map(tuple),
)


@given(sessions, st.floats(0, 1e13))
@settings(max_examples=400, deadline=None)
def test_records_that_fit_nothing_are_summed_all_the_same(session: SessionTimes, now_ms: float) -> None:
    check(analyse(session, now_ms))
