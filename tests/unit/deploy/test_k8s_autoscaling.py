"""Engines follow the load as the ScaledObject has it: fast enough, and without coming and going.

Played with a model of the autoscaler and of a fleet (`autoscaler.py`), for want of a cluster and of KEDA.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.deploy.autoscaler import STEP_S, Autoscaler, Fleet
from tests.unit.deploy.manifests import objects, of_kind

(SCALER,) = of_kind(objects("production"), "ScaledObject")
SPEC = SCALER["spec"]
WAITS_S = float(SPEC["triggers"][0]["metadata"]["threshold"])
HOUR_S = 3600


class Played:
    """A fleet with its autoscaler, and what became of them so far."""

    def __init__(self, replicas: int = 2, spec: dict[str, Any] = SPEC, starts_s: int = 240) -> None:
        self.fleet = Fleet(replicas, starts_s=starts_s)
        self.changes: list[tuple[int, int]] = []
        self._scaler = Autoscaler(spec)

    def under(self, programs: float, for_s: int) -> float:
        """Calls come that keep so many programs busy; the longest that one waited meanwhile."""
        longest_s = 0.0
        for _ in range(for_s // STEP_S):
            self.fleet.pass_time(programs / self.fleet.takes_s)
            longest_s = max(longest_s, self.fleet.waits_s)
            replicas = self._scaler.decide(self.fleet)
            if replicas != self.fleet.replicas:
                self.changes.append((self.fleet.clock_s, replicas))
            self.fleet.scale(replicas)
        return longest_s


@settings(max_examples=50)
@given(st.integers(0, 8 * 48), st.integers(2, 8), st.sampled_from([30, 240, 900]))
def test_under_a_steady_load_engines_stay_as_many_as_it_takes(
    programs: int, replicas: int, starts_s: int
) -> None:
    played = Played(replicas, starts_s=starts_s)
    played.under(programs, 2 * HOUR_S)
    settled = len(played.changes)
    assert played.under(programs, HOUR_S) <= WAITS_S
    assert len(played.changes) == settled
    assert played.fleet.ready == played.fleet.replicas
    # A tenth more than three quarters full is within the autoscaler's tolerance.
    assert programs <= played.fleet.replicas * 48 * 1.1
    assert played.fleet.replicas == 2 or programs > (played.fleet.replicas - 1) * 48 * 0.9


def test_when_the_load_doubles_calls_find_room_within_ten_minutes() -> None:
    played = Played()
    played.under(90, HOUR_S)
    played.under(224, 600)
    assert played.fleet.ready * played.fleet.capacity > 224
    # Then what had gathered is worked off.
    played.under(224, 300)
    assert played.fleet.waits_s <= WAITS_S


def test_a_lull_of_nine_minutes_ends_no_engine() -> None:
    played = Played()
    played.under(300, HOUR_S)
    before = played.fleet.replicas
    played.under(10, 9 * 60)
    assert played.fleet.replicas == before
    assert played.under(300, 600) <= WAITS_S


def test_when_the_load_falls_engines_go_one_by_one_and_no_call_waits_for_it() -> None:
    played = Played()
    played.under(380, HOUR_S)
    most = played.fleet.replicas
    played.changes.clear()
    assert played.under(100, 2 * HOUR_S) == 0
    assert [replicas for _, replicas in played.changes] == list(range(most - 1, 2, -1))
    times = [at_s for at_s, _ in played.changes]
    assert min(after - before for before, after in itertools.pairwise(times)) >= 180


def test_more_than_the_most_engines_can_do_starts_no_more_of_them() -> None:
    played = Played()
    played.under(2000, HOUR_S)
    assert played.fleet.replicas == SPEC["maxReplicaCount"]


def test_by_waiting_alone_engines_would_come_and_go() -> None:
    # Why programs are counted, too: a fleet that just keeps up has nobody waiting.
    spec = copy.deepcopy(SPEC)
    spec["triggers"][1]["metadata"]["threshold"] = "1000000"
    played = Played(spec=spec)
    played.under(224, HOUR_S)
    played.changes.clear()
    longest_s = played.under(224, 3 * HOUR_S)
    assert len(played.changes) > 10
    assert longest_s > 10 * WAITS_S
