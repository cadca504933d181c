"""A program's laps leave nothing of its time out, and say nothing twice."""

from __future__ import annotations

import time

import pytest

from parrot_engine.backends.base import Phases
from parrot_engine.programs.laps import Laps
from parrot_proto.common.v1 import common_pb2 as pb


class Clock:
    """A clock that a test turns, in place of both the engine reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 1_000.0
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self.ms * 1e6))
        monkeypatch.setattr(time, "time_ns", lambda: int((self.ms + 5e5) * 1e6))

    def made(self, arrived_ms_ago: float) -> Laps:
        """The laps of a program that came a while ago."""
        return Laps(int((self.ms + 5e5 - arrived_ms_ago) * 1e6))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def said(of: Laps) -> list[tuple[int, float, str]]:
    return [(lap.stage, round(lap.lasted_ms, 3), lap.variable_id) for lap in of.message]


def test_each_begins_where_the_one_before_ended(clock: Clock) -> None:
    program = clock.made(arrived_ms_ago=3)
    program.read()
    clock.ms += 10
    program.queued()
    began_ns = time.monotonic_ns()
    clock.ms += 100
    program.generated(began_ns, Phases(queue_ms=20, prefill_ms=30, decode_ms=40))
    clock.ms += 2
    program.transformed()
    clock.ms += 4
    program.published("x")
    assert said(program) == [
        (pb.STAGE_INPUTS, 3, ""),
        (pb.STAGE_QUEUE, 30, ""),
        (pb.STAGE_STATIC_PREFILL, 30, ""),
        # What the backend leaves out is there as well.
        (pb.STAGE_DECODE, 50, ""),
        (pb.STAGE_TRANSFORMS, 2, ""),
        (pb.STAGE_PUBLISH, 4, "x"),
    ]


def test_what_is_prefilled_behind_an_input_that_came_is_dynamic_up_to_the_output(clock: Clock) -> None:
    program = clock.made(0)
    clock.ms += 50
    program.waited("x")
    clock.ms += 5
    program.filled()
    program.generated(time.monotonic_ns(), Phases())
    clock.ms += 7
    program.filled()
    assert said(program) == [
        (pb.STAGE_INPUTS, 50, "x"),
        (pb.STAGE_DYNAMIC_PREFILL, 5, ""),
        (pb.STAGE_STATIC_PREFILL, 7, ""),
    ]


def test_phases_that_exceed_the_time_there_was_are_cut_to_it(clock: Clock) -> None:
    program = clock.made(0)
    began_ns = time.monotonic_ns()
    clock.ms += 10
    program.generated(began_ns, Phases(queue_ms=8, prefill_ms=500, decode_ms=500))
    assert said(program) == [(pb.STAGE_QUEUE, 8, ""), (pb.STAGE_STATIC_PREFILL, 2, "")]


def test_a_program_that_came_in_the_future_came_now(clock: Clock) -> None:
    program = clock.made(arrived_ms_ago=-60_000)
    clock.ms += 1
    program.read()
    assert said(program) == [(pb.STAGE_INPUTS, 1, "")]
