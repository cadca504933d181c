"""The critical path goes where the time went: each case by itself, on records a manager could have made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.recorded import START_MS, Script, run

from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.critical_path import Analysis, SessionTimes, Stage, analyse
from parrot_runtime.critical_path.messages import times_of
from parrot_runtime.critical_path.records import BlockTimes, CallTimes, Lap, VariableTimes

T = START_MS


def path_of(session: SessionTimes, now_ms: float = 0.0) -> list[tuple[str, str, float]]:
    """Stage, call and length of each segment."""
    return [(str(s.stage), s.node_id, round(s.lasted_ms, 3)) for s in analyse(session, now_ms).segments]


def test_a_chain_is_its_calls_one_after_another() -> None:
    session = run([Script(takes={"decode": 40.0}), Script((0,), takes={"decode": 60.0, "queue": 5.0})])
    assert path_of(session) == [("decode", "c-0", 40.0), ("queue", "c-1", 5.0), ("decode", "c-1", 60.0)]


def test_of_two_inputs_the_later_one_is_on_the_path() -> None:
    early, late = Script(takes={"decode": 30.0}), Script(takes={"decode": 90.0})
    session = run([early, late, Script((0, 1), takes={"decode": 10.0})])
    assert path_of(session) == [("decode", "c-1", 90.0), ("decode", "c-2", 10.0)]


def test_what_overlaps_with_a_producer_that_ends_last_counts_once() -> None:
    producer = Script(takes={"decode": 200.0, "publish": 2.0, "collect": 3.0})
    consumer = Script((0,), ahead=True, takes={"reading": 50.0, "network": 4.0, "tail": 7.0, "decode": 20.0})
    session = run([producer, consumer])
    assert session.calls[1].sent_ahead
    assert path_of(session) == [
        ("decode", "c-0", 200.0),
        ("commit", "c-0", 2.0),
        ("network", "c-1", 4.0),
        ("dynamic_prefill", "c-1", 7.0),
        ("decode", "c-1", 20.0),
        ("network", "c-1", 4.0),
    ]


def test_a_consumer_that_was_still_busy_keeps_the_path_to_itself() -> None:
    producer = Script(takes={"decode": 30.0})
    consumer = Script((0,), ahead=True, takes={"reading": 80.0, "tail": 7.0, "decode": 20.0})
    # It was sent when its producer was.
    assert path_of(run([producer, consumer])) == [
        ("inputs", "c-1", 80.0),
        ("dynamic_prefill", "c-1", 7.0),
        ("decode", "c-1", 20.0),
    ]


def test_without_queueing_another_chain_may_be_the_longest() -> None:
    queued = Script(takes={"queue": 100.0, "decode": 20.0})
    session = run([queued, Script(takes={"decode": 90.0})])
    (what_if,) = [one for one in analyse(session, 0.0).what_ifs if one.stage is Stage.QUEUE]
    assert what_if.total_ms == 90.0
    assert what_if.change == pytest.approx(-0.25)


def test_a_client_that_sends_after_an_end_was_waiting_for_it_and_for_its_commit() -> None:
    first, then = Script(takes={"decode": 40.0}), Script(takes={"decode": 40.0}, after=0, client_ms=30.0)
    session = run([first, then])
    assert path_of(session) == [("decode", "c-0", 40.0), ("client", "", 30.0), ("decode", "c-1", 40.0)]
    known = replace(session.calls[1], settled_ms=T + 48)
    assert path_of(replace(session, calls=(session.calls[0], known)))[1:3] == [
        ("commit", "", 8.0),
        ("client", "", 22.0),
    ]


def test_attempts_that_came_to_nothing_are_retries() -> None:
    session = run([Script(takes={"decode": 40.0})])
    (call,) = session.calls
    lost = replace(
        call,
        dispatched_ms=T + 70,
        sent_ms=T + 70,
        told_ms=T + 110,
        ended_ms=T + 110,
        first_dispatched_ms=T + 10,
    )
    assert path_of(replace(session, calls=(lost,), ended_ms=T + 110))[:2] == [
        ("queue", "c-0", 10.0),
        ("retries", "c-0", 60.0),
    ]


def test_what_has_not_ended_reaches_up_to_now() -> None:
    waits = CallTimes("c-1", "f", T, entered_ms=T + 2, ready_ms=T + 2)
    runs = CallTimes("c-2", "g", T, entered_ms=T + 2, ready_ms=T + 2, dispatched_ms=T + 5, engine_id="e")
    found = analyse(SessionTimes("s", T, calls=(waits, runs)), T + 50)
    assert (found.ended, found.total_ms) == (False, 50)
    stages = {row.id: [(str(one.stage), one.lasted_ms) for one in row.stretches] for row in found.rows}
    assert stages["c-1"] == [("admission", 2), ("queue", 48)]
    assert stages["c-2"] == [("admission", 2), ("queue", 3), ("running", 45)]


def test_a_session_without_calls_is_its_clients() -> None:
    assert path_of(SessionTimes("s", T, opened_ms=T + 5, ended_ms=T + 100)) == [
        ("admission", "", 5),
        ("client", "", 95),
    ]


def test_a_call_that_failed_without_a_word_is_unexplained() -> None:
    failed = CallTimes(
        "c-1", "f", T, entered_ms=T, ready_ms=T, dispatched_ms=T, ended_ms=T + 30, state="failed"
    )
    assert path_of(SessionTimes("s", T, calls=(failed,), ended_ms=T + 30)) == [("unexplained", "c-1", 30)]


def test_what_a_worker_of_the_client_does_is_the_clients() -> None:
    native = CallTimes(
        "c-1", "f", T, by_client=True, entered_ms=T, ready_ms=T, dispatched_ms=T + 20, ended_ms=T + 50
    )
    assert path_of(SessionTimes("s", T, calls=(native,), ended_ms=T + 50)) == [("client", "c-1", 50)]


def test_laps_that_do_not_fit_are_scaled() -> None:
    laps = (Lap(Stage.DECODE, 300.0), Lap(Stage.COMMIT, 100.0))
    call = CallTimes(
        "c-1",
        "f",
        T,
        entered_ms=T,
        ready_ms=T,
        dispatched_ms=T,
        sent_ms=T,
        told_ms=T + 40,
        ended_ms=T + 40,
        laps=laps,
    )
    assert path_of(SessionTimes("s", T, calls=(call,), ended_ms=T + 40)) == [
        ("decode", "c-1", 30),
        ("commit", "c-1", 10),
    ]


def test_an_instance_follows_what_its_block_waited_for() -> None:
    maker = run([Script(takes={"decode": 40.0})]).calls[0]
    one, other = (
        CallTimes(
            f"c-{number}",
            "each",
            T + 45,
            block_id="b-1",
            entered_ms=T + 45,
            ready_ms=T + 45,
            dispatched_ms=T + 45,
            sent_ms=T + 45,
            told_ms=T + 45 + ms,
            ended_ms=T + 45 + ms,
            laps=(Lap(Stage.DECODE, ms),),
        )
        for number, ms in ((2, 30.0), (3, 50.0))
    )
    session = SessionTimes(
        "s",
        T,
        ended_ms=T + 95,
        calls=(maker, one, other),
        variables=(VariableTimes("v0", "c-0", T + 40),),
        blocks=(BlockTimes("b-1", "map", T, T + 45, T + 95, ("v0",)),),
    )
    assert path_of(session) == [("decode", "c-0", 40), ("inputs", "", 5), ("decode", "c-3", 50)]


def test_a_chain_of_thousands_is_walked() -> None:
    scripts = [Script((number - 1,) if number else (), takes={"decode": 1.0}) for number in range(3000)]
    found = analyse(run(scripts), 0.0)
    assert found.total_ms == 3000
    assert shares(found) == {"decode": 3000}


def test_a_managers_messages_say_what_its_records_do() -> None:
    lap = common_pb2.Lap(stage=common_pb2.STAGE_INPUTS, lasted_ms=3, variable_id="v")
    last = common_pb2.Lap(stage=common_pb2.STAGE_PUBLISH, lasted_ms=1, variable_id="w")
    later = common_pb2.Lap(stage=99, lasted_ms=2)  # type: ignore[arg-type]
    call = manager_pb2.Call(
        id="c-1", native="client", marks=common_pb2.Marks(sent_unix_ms=7.5, laps=[lap, later, last])
    )
    times = times_of(manager_pb2.GetSessionResponse(calls=[call]))
    assert times.calls[0].by_client
    assert times.calls[0].sent_ms == 7.5
    assert times.calls[0].laps == (
        Lap(Stage.INPUTS, 3, awaited="v"),
        Lap(Stage.UNEXPLAINED, 2),
        Lap(Stage.COMMIT, 1, published="w"),
    )


def shares(found: Analysis) -> dict[str, float]:
    """Time by stage, in whole ms."""
    return {str(stage): round(ms) for stage, ms in found.stages.items()}
