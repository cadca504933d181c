"""What engines say of their laps is kept as far as it can be, whatever it is."""

from __future__ import annotations

import json
import math

import pytest

from parrot_manager import convert, marks
from parrot_manager.core.marks import Lap, Marks, SessionMarks, Stage
from parrot_manager.core.model import Ref
from parrot_manager.store import mark_rows
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2


def test_marks_come_back_from_their_row() -> None:
    kept = Marks(1.5, 2.0, 3.25, 4.0, (Lap(Stage.INPUTS, 5.125, "v"), Lap(Stage.DECODE, 6.0)), 0.5)
    row = json.loads(json.dumps(mark_rows.marks(kept)))
    assert mark_rows.to_marks(row) == kept
    assert mark_rows.marks(Marks()) is None
    assert mark_rows.to_marks(None) == Marks()


def test_rows_of_a_later_release_are_read_as_far_as_they_are_known() -> None:
    row = {"entered_ms": 2.0, "steered_ms": 3.0, "laps": [[99, 1.5], [5, 2.5, "v", {"steps": 4}]]}
    laps = (Lap(Stage.UNKNOWN, 1.5), Lap(Stage.DECODE, 2.5, "v"))
    assert mark_rows.to_marks(row) == Marks(entered_ms=2.0, laps=laps)
    assert mark_rows.to_session_marks({"opened_ms": 2.0, "steered_ms": 3.0}) == SessionMarks(opened_ms=2.0)


@pytest.mark.parametrize("said_ms", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_times_that_are_no_times_do_not_reach_the_store(said_ms: float) -> None:
    (lap,) = marks.from_laps([common_pb2.Lap(stage=common_pb2.STAGE_DECODE, lasted_ms=said_ms)])
    assert 0 <= lap.lasted_ms <= marks.LONGEST_MS


def test_names_are_clipped_and_stages_of_a_later_release_are_not_known() -> None:
    said = common_pb2.Lap(stage=99, lasted_ms=1, variable_id="\0" + "v" * 10_000)  # type: ignore[arg-type]
    (lap,) = marks.from_laps([said])
    assert lap.stage is Stage.UNKNOWN
    assert "\0" not in lap.variable_id
    assert len(lap.variable_id) <= marks.NAME_BYTES


def test_of_too_many_laps_the_rest_is_one_and_none_of_the_time_is_lost() -> None:
    said = [common_pb2.Lap(stage=common_pb2.STAGE_DECODE, lasted_ms=1)] * (marks.LAPS + 50)
    kept = marks.from_laps(said)
    assert len(kept) == marks.LAPS
    assert sum(lap.lasted_ms for lap in kept) == marks.LAPS + 50


@pytest.mark.parametrize("said_ms", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_times_that_are_no_times_are_not_learned_from(said_ms: float) -> None:
    names = [name for name in common_pb2.Timings.DESCRIPTOR.fields_by_name if name.endswith("_ms")]
    said = common_pb2.Timings()
    for name in names:
        setattr(said, name, said_ms)
    found = convert.from_timings(said)
    step_ms = convert.from_heartbeat(engine_pb2.Heartbeat(step_ms=said_ms)).step_ms
    for lasted_ms in [step_ms, *(getattr(found, name) for name in names)]:
        assert 0 <= lasted_ms <= marks.LONGEST_MS


def test_what_engines_say_of_sessions_that_are_not_here_is_not_kept() -> None:
    noted, ref = marks.Noted(), Ref("gone", "c-1", 1)
    noted.take(ref, ())
    assert not any(vars(noted).values())


def test_a_session_that_left_memory_leaves_no_marks() -> None:
    noted, ref = marks.Noted(), Ref("s", "c-1", 1)
    noted.sent(ref)
    noted.told(ref)
    noted.settled("s")
    noted.forget("s")
    assert noted.settled_ms("s") == 0
    taken = noted.take(ref, ())
    assert taken.sent_ms == 0
    assert taken.told_ms > 0, "one that was not noted before is told now"
    assert not any(vars(noted).values())
