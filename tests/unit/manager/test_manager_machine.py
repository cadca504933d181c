"""What the machine decides, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.machine import SESSION, TENANT, Rig, new, only

from parrot_manager.core import admission, events
from parrot_manager.core.commands import (
    Arm,
    Cancel,
    Dispatch,
    Forget,
    Persist,
    PublishEnd,
    PublishValue,
)
from parrot_manager.core.model import (
    CallState,
    Ref,
    SessionState,
    Usage,
    Value,
    VariableState,
)
from parrot_manager.core.state import Policy
from parrot_manager.core.submissions import NewValue
from parrot_runtime import errors
from parrot_runtime.errors import Fault

C1, C2 = Ref(SESSION, "c-1", 1), Ref(SESSION, "c-2", 1)


@pytest.fixture
def rig() -> Rig:
    """A machine with an open session and one engine."""
    rig = Rig()
    rig.open()
    rig.engine()
    return rig


def chain(rig: Rig, length: int = 3) -> None:
    """Calls c-1, c-2, ... each reading what the one before made; `a` is given."""
    names = "abcdefgh"
    rig.submit([new(f"f{n}", names[n], names[n + 1]) for n in range(length)], ["a"])


def test_a_ready_call_is_stored_before_it_is_dispatched(rig: Rig) -> None:
    told = rig.submit([new("one", "a", "b")], ["a"])
    kinds = [type(command) for command in told]
    assert kinds == [Persist, PublishValue, Dispatch]
    assert rig.call("c-1").state is CallState.DISPATCHED
    changes = only(Persist, told)[0].changes
    assert [attempt.ref for attempt in changes.attempts] == [C1]


def test_a_call_waits_for_its_input_and_runs_when_that_is_committed(rig: Rig) -> None:
    chain(rig, 2)
    assert rig.call("c-2").state is CallState.WAITING
    told = rig.done(C1)
    (persist,) = only(Persist, told)
    assert {call.id for call in persist.changes.calls} == {"c-1", "c-2"}
    assert [(v.variable_id, v.data) for v in persist.changes.values] == [("b", b"made")]
    assert [command.call.id for command in only(Dispatch, told)] == ["c-2"]


def test_the_core_keeps_no_value(rig: Rig) -> None:
    chain(rig, 1)
    rig.done(C1)
    assert rig.variable("b").size_bytes == 4
    assert rig.call("c-1").spec == b""


def test_what_an_engine_says_twice_or_late_changes_nothing(rig: Rig) -> None:
    chain(rig, 2)
    rig.done(C1)
    assert only(Persist, rig.done(C1)) == []
    assert only(Persist, rig.failed(C1)) == []
    assert only(Persist, rig.tell(events.AttemptStreaming(C1, "b"))) == []
    assert rig.call("c-1").state is CallState.DONE


def test_a_failure_reaches_all_descendants_with_its_root(rig: Rig) -> None:
    chain(rig, 3)
    told = rig.failed(C1, errors.PROMPT_TOO_LONG)
    assert len(only(Persist, told)) == 1
    for call_id in ("c-2", "c-3"):
        failure = rig.call(call_id).failure
        assert failure is not None
        assert (failure.type, failure.cause_type, failure.cause_call_id) == (
            "upstream_failed",
            "prompt_too_long",
            "c-1",
        )
        assert failure.call_id == call_id
    assert {command.variable.id for command in only(PublishEnd, told)} == {"b", "c", "d"}
    assert rig.session().state is SessionState.OPEN


def test_a_call_that_joins_later_fails_with_an_input_that_has_failed(rig: Rig) -> None:
    chain(rig, 2)
    rig.failed(C1)
    rig.submit([new("late", "c", "z")])
    failure = rig.call("c-3").failure
    assert failure is not None
    assert (failure.cause_type, failure.cause_call_id) == ("prompt_too_long", "c-1")


def test_siblings_of_a_failed_call_go_on(rig: Rig) -> None:
    rig.submit([new("one", "", "a"), new("two", "", "b")])
    rig.failed(C1)
    assert rig.call("c-2").state is CallState.DISPATCHED


def test_no_engine_gets_more_than_its_capacity_until_it_says_that_it_has_room() -> None:
    rig = Rig()
    rig.open()
    rig.engine(capacity=1)
    rig.submit([new("one", "", "a"), new("two", "", "b")])
    assert [command.call.id for command in only(Dispatch, rig.said)] == ["c-1"]
    told = rig.tell(events.SlotFreed("e-1", C1))
    assert [command.call.id for command in only(Dispatch, told)] == ["c-2"]


def test_closing_cancels_what_is_unfinished_and_tells_engines_and_readers(rig: Rig) -> None:
    chain(rig, 2)
    told = rig.close()
    assert rig.session().state is SessionState.CANCELLED
    assert {rig.call(name).state for name in ("c-1", "c-2")} == {CallState.CANCELLED}
    assert [(command.ref, command.engine_id) for command in only(Cancel, told)] == [(C1, "e-1")]
    assert {command.variable.state for command in only(PublishEnd, told)} == {VariableState.CANCELLED}


def test_closing_a_finished_session_closes_it(rig: Rig) -> None:
    chain(rig, 1)
    rig.done(C1)
    assert rig.session().state is SessionState.OPEN
    rig.close()
    assert rig.session().state is SessionState.CLOSED
    assert rig.close() == []


def test_the_deadline_fails_what_is_unfinished(rig: Rig) -> None:
    chain(rig, 2)
    told = rig.fire(events.TimerKind.SESSION_DEADLINE, SESSION)
    failure = rig.call("c-1").failure
    assert rig.session().state is SessionState.EXPIRED
    assert failure is not None
    assert failure.type == "deadline_exceeded"
    assert "3600 s" in failure.message
    assert len(only(Cancel, told)) == 1


def test_a_batch_stored_while_its_session_ended_ends_too(rig: Rig) -> None:
    accepted = rig.admit([new("one", "", "a")])
    rig.close()
    told = rig.tell(accepted)
    assert rig.call("c-1").state is CallState.CANCELLED
    assert only(Dispatch, told) == []
    assert {call.state for call in only(Persist, told)[0].changes.calls} == {CallState.CANCELLED}


def test_an_ended_session_is_forgotten_after_a_while(rig: Rig) -> None:
    rig.close()
    assert only(Forget, rig.fire(events.TimerKind.FORGET, SESSION)) == [Forget(SESSION)]
    assert rig.machine.state.sessions == {}


def test_a_call_that_finds_no_engine_fails_after_the_wait() -> None:
    rig = Rig()
    rig.open()
    rig.submit([new("one", "", "a")])
    rig.now_ms += 10_000
    rig.submit([new("two", "", "b")])
    rig.fire(events.TimerKind.NO_ENGINE, "m")
    first = rig.call("c-1").failure
    assert first is not None
    assert first.type == "no_engine"
    assert rig.call("c-2").state is CallState.READY
    rig.fire(events.TimerKind.NO_ENGINE, "m")
    assert rig.call("c-2").state is CallState.FAILED


def test_an_engine_that_comes_in_time_stops_the_clock_and_its_loss_starts_it_anew() -> None:
    rig = Rig()
    rig.open()
    rig.submit([new("one", "", "a"), new("two", "", "b")])
    rig.now_ms += 20_000
    rig.engine(capacity=1)
    rig.tell(events.TimerFired(events.Timer(events.TimerKind.NO_ENGINE, "m")))
    rig.now_ms += 20_000
    rig.tell(events.EngineLost("e-1", 1))
    rig.tell(events.TimerFired(events.Timer(events.TimerKind.NO_ENGINE, "m")))
    assert rig.call("c-2").state is CallState.READY
    rig.fire(events.TimerKind.NO_ENGINE, "m")
    assert rig.call("c-2").state is CallState.FAILED


def test_a_busy_engine_is_waited_for() -> None:
    rig = Rig()
    rig.open()
    rig.engine(capacity=1)
    rig.submit([new("one", "", "a"), new("two", "", "b")])
    assert [arm for arm in only(Arm, rig.said) if arm.timer.kind is events.TimerKind.NO_ENGINE] == []


def test_a_model_no_engine_serves_is_refused_when_engines_are_there(rig: Rig) -> None:
    with pytest.raises(Fault) as refused:
        rig.submit([new("one", "", "a"), new("two", "", "b", model="gpt")])
    assert refused.value.kind is errors.UNKNOWN_MODEL
    assert refused.value.field == "calls[1].model"
    assert "there are: m" in refused.value.message


def test_the_loss_of_an_older_attachment_is_old_news(rig: Rig) -> None:
    rig.engine(epoch=2)
    rig.tell(events.EngineLost("e-1", 1))
    assert rig.machine.state.serving("m")


def test_a_draining_engine_gets_nothing_new_and_may_finish(rig: Rig) -> None:
    chain(rig, 2)
    rig.tell(events.EngineDraining("e-1", 1))
    assert only(Dispatch, rig.done(C1)) == []
    assert rig.call("c-1").state is CallState.DONE
    assert rig.call("c-2").state is CallState.READY


def test_a_program_that_never_arrived_goes_to_another_engine(rig: Rig) -> None:
    chain(rig, 1)
    rig.tell(events.EngineLost("e-1", 1))
    rig.engine("e-2")
    told = rig.tell(events.AttemptUndelivered(C1))
    assert [(d.engine_id, d.call.attempt) for d in only(Dispatch, told)] == [("e-2", 2)]
    rig.lost(C1)
    assert rig.call("c-1").state is CallState.DISPATCHED


def test_a_value_the_bus_lost_is_published_again_a_bounded_number_of_times(rig: Rig) -> None:
    chain(rig, 1)
    for attempt in (1, 2):
        ref = Ref(SESSION, "c-1", attempt)
        rig.failed(ref, errors.VALUE_UNAVAILABLE)
        (again,) = only(Dispatch, rig.lost(ref))
        assert [variable.id for variable, _ in again.republish] == ["a"]
    rig.failed(Ref(SESSION, "c-1", 3), errors.VALUE_UNAVAILABLE)
    assert rig.call("c-1").state is CallState.FAILED


def test_old_values_are_published_again_before_use_and_once(rig: Rig) -> None:
    rig.submit([], ["a"])
    rig.now_ms += Policy().republish_after_ms + 1
    told = rig.submit([new("one", "a", "b"), new("two", "a", "c")])
    assert [[v.id for v, _ in d.republish] for d in only(Dispatch, told)] == [["a"], []]


def test_a_value_is_set_once_and_never_for_a_produced_variable(rig: Rig) -> None:
    chain(rig, 1)
    state = rig.machine.state
    with pytest.raises(Fault) as refused:
        admission.admit_value(state, TENANT, SESSION, NewValue("a", "", b""), 0)
    assert refused.value.kind is errors.VARIABLE_ALREADY_SET
    with pytest.raises(Fault) as refused:
        admission.admit_value(state, TENANT, SESSION, NewValue("b", "", b""), 0)
    assert refused.value.kind is errors.DUPLICATE_PRODUCER


def test_another_tenants_session_is_not_there(rig: Rig) -> None:
    with pytest.raises(Fault) as refused:
        admission.admit_close(rig.machine.state, "other", SESSION)
    assert refused.value.kind is errors.NOT_FOUND


@pytest.mark.parametrize("timeout_ms", [-1, 86_400_001])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    with pytest.raises(Fault) as refused:
        Rig().open(timeout_ms=timeout_ms)
    assert refused.value.field == "timeout_ms"


def test_nothing_is_dispatched_while_the_manager_drains(rig: Rig) -> None:
    chain(rig, 2)
    rig.tell(events.DrainStarted())
    assert only(Dispatch, rig.done(C1)) == []


def restart(rig: Rig, *, state: SessionState = SessionState.OPEN) -> Rig:
    """A new machine that takes up what a store would hold of the old one."""
    live = rig.machine.state.sessions[SESSION]
    fresh = Rig(now_ms=rig.now_ms + 1_000)
    variables = tuple(replace(variable, published_ms=0) for variable in live.variables.values())
    attempts = tuple(live.attempts.values())
    session = replace(live.session, state=state)
    fresh.tell(events.SessionRestored(session, tuple(live.calls.values()), variables, attempts))
    return fresh


def test_after_a_restart_a_session_that_was_closing_is_closed(rig: Rig) -> None:
    chain(rig, 1)
    fresh = restart(rig, state=SessionState.CLOSING)
    assert fresh.session().state is SessionState.CANCELLED
    assert fresh.call("c-1").state is CallState.CANCELLED


def test_after_a_restart_calls_of_an_ended_session_end(rig: Rig) -> None:
    chain(rig, 1)
    fresh = restart(rig, state=SessionState.EXPIRED)
    failure = fresh.call("c-1").failure
    assert failure is not None
    assert failure.type == "deadline_exceeded"


def test_failures_are_told_again_after_a_restart(rig: Rig) -> None:
    chain(rig, 1)
    rig.failed(C1)
    fresh = restart(rig)
    assert [command.variable.id for command in only(PublishEnd, fresh.said)] == ["b"]


def test_an_engine_that_still_runs_what_nobody_waits_for_is_told_to_stop(rig: Rig) -> None:
    ghost = Ref(SESSION, "c-9", 1)
    told = rig.tell(events.EngineJoined(rig.machine.state.engines["e-1"].engine, (ghost,)))
    assert [command.ref for command in only(Cancel, told)] == [ghost]


def test_the_fleet_learns_from_what_is_done_and_not_from_what_failed(rig: Rig) -> None:
    rig.submit([new("f", "", f"v{n}") for n in range(40)])
    for _ in range(20):
        ref = next(iter(rig.machine.state.engines["e-1"].running))
        rig.tell(events.SlotFreed("e-1", ref, Usage(7, 0, 9)))
        rig.tell(events.AttemptDone(ref, tuple(Value(v, b"x") for v in rig.call(ref.call_id).output_ids)))
    learned = only(Dispatch, rig.said)[-1].expected_output_tokens
    assert learned == 9
    for _ in range(20):
        rig.failed(next(iter(rig.machine.state.engines["e-1"].running)))
    assert only(Dispatch, rig.said)[-1].expected_output_tokens == learned
