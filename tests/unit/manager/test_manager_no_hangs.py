"""Whatever one application meets, it ends, and the others never notice."""

from __future__ import annotations

import pytest
from tests.support.machine import PLAIN, TENANT, Rig, new, only

from parrot_manager.core import admission, events
from parrot_manager.core.commands import Arm, Dispatch
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.events import TimerKind, VariablesWanted, Wanted
from parrot_manager.core.model import CallState, Ref, SessionState, VariableState
from parrot_runtime import errors
from parrot_runtime.errors import Fault

ONE, OTHER = "s00-0000000000000001", "s01-0000000000000002"


@pytest.fixture
def rig() -> Rig:
    """Two sessions and one engine."""
    rig = Rig()
    rig.open(ONE)
    rig.open(OTHER)
    rig.engine()
    return rig


def attempts(rig: Rig, session_id: str) -> list[int]:
    """The attempts of a session's calls."""
    return [call.attempt for call in rig.machine.state.sessions[session_id].calls.values()]


def test_an_engine_that_dies_under_two_sessions_stops_neither(rig: Rig) -> None:
    for session in (ONE, OTHER):
        rig.submit([new("one", "", "a"), new("two", "a", "b")], session_id=session)
    rig.engine("e-2")
    rig.die()
    for session in (ONE, OTHER):
        rig.lost(Ref(session, "c-1", 1))
        rig.done(Ref(session, "c-1", 2))
        rig.done(Ref(session, "c-2", 1))
        assert attempts(rig, session) == [2, 1]
        assert {call.state for call in rig.machine.state.sessions[session].calls.values()} == {CallState.DONE}


def test_an_engine_that_died_may_come_back_and_serves_again(rig: Rig) -> None:
    rig.die()
    rig.engine(epoch=2)
    rig.submit([new("one", "", "a")], session_id=ONE)
    rig.done(Ref(ONE, "c-1", 1))
    assert rig.call("c-1", ONE).state is CallState.DONE


def test_a_model_nobody_serves_is_one_clients_mistake(rig: Rig) -> None:
    with pytest.raises(Fault) as refused:
        rig.submit([new("one", "", "a", model="gpt")], session_id=ONE)
    assert refused.value.kind is errors.UNKNOWN_MODEL
    rig.submit([new("one", "", "a")], session_id=OTHER)
    assert [command.session_id for command in only(Dispatch, rig.said)] == [OTHER]


def test_a_failed_call_ends_its_own_branch_and_its_session_goes_on(rig: Rig) -> None:
    rig.submit([new("one", "", "a"), new("two", "a", "b"), new("aside", "", "c")], session_id=ONE)
    rig.failed(Ref(ONE, "c-1", 1))
    rig.done(Ref(ONE, "c-3", 1))
    assert [rig.call(f"c-{n}", ONE).state.name for n in (1, 2, 3)] == ["FAILED", "FAILED", "DONE"]
    rig.submit([new("next", "c", "d")], session_id=ONE)
    assert rig.call("c-4", ONE).state is CallState.DISPATCHED


def test_a_call_with_several_outputs_makes_them_all(rig: Rig) -> None:
    rig.submit([new("one", "", "a b c"), new("two", "b", "d")], session_id=ONE)
    rig.done(Ref(ONE, "c-1", 1))
    assert {rig.variable(name, ONE).state for name in "abc"} == {VariableState.READY}
    assert rig.call("c-2", ONE).state is CallState.DISPATCHED


def test_a_variable_may_be_read_consumed_and_read_again() -> None:
    rig = Rig()
    opened = admission.admit_session(
        PLAIN, rig.now_ms, session_id=ONE, tenant=TENANT, label="", timeout_ms=0, lazy=True
    )
    rig.tell(opened)
    rig.engine()
    rig.submit([new("one", "", "a"), new("two", "a", "b"), new("three", "a", "c")], session_id=ONE)
    for name, kind in (("a", ObjectiveKind.THROUGHPUT), ("b", None), ("a", ObjectiveKind.LATENCY)):
        criteria = Criteria(kind) if kind is not None else None
        rig.tell(VariablesWanted(ONE, (Wanted(name, criteria),)))
    assert rig.variable("a", ONE).criteria == Criteria(ObjectiveKind.LATENCY)
    rig.done(Ref(ONE, "c-1", 1))
    rig.tell(VariablesWanted(ONE, (Wanted("c", None), Wanted("a", None))))
    assert [command.call.id for command in only(Dispatch, rig.said)] == ["c-1", "c-2", "c-3"]


def test_what_nobody_ever_reads_ends_with_its_session_and_troubles_nobody() -> None:
    rig = Rig()
    rig.tell(
        admission.admit_session(
            PLAIN, rig.now_ms, session_id=ONE, tenant=TENANT, label="", timeout_ms=1_000, lazy=True
        )
    )
    rig.open(OTHER)
    rig.engine()
    rig.submit([new("one", "", "a")], session_id=ONE)
    rig.fire(TimerKind.SESSION_DEADLINE, ONE)
    assert rig.session(ONE).state is SessionState.EXPIRED
    failure = rig.call("c-1", ONE).failure
    assert failure is not None
    assert failure.type == "deadline_exceeded"
    rig.submit([new("one", "", "a")], session_id=OTHER)
    assert rig.call("c-1", OTHER).state is CallState.DISPATCHED


def test_every_session_has_a_deadline_from_its_first_moment_on(rig: Rig) -> None:
    armed = {arm.timer.id for arm in only(Arm, rig.said) if arm.timer.kind is TimerKind.SESSION_DEADLINE}
    assert armed == {ONE, OTHER}


def test_a_call_whose_engine_went_for_good_fails_after_the_wait(rig: Rig) -> None:
    rig.submit([new("one", "", "a"), new("two", "a", "b")], session_id=ONE)
    rig.die()
    rig.lost(Ref(ONE, "c-1", 1))
    rig.fire(TimerKind.NO_ENGINE, "m")
    assert [rig.call(f"c-{n}", ONE).state for n in (1, 2)] == [CallState.FAILED] * 2


def test_nothing_is_left_of_a_session_that_was_forgotten(rig: Rig) -> None:
    rig.submit([new("one", "", "a"), new("two", "a", "b"), new("never", "b", "c")], session_id=ONE)
    rig.failed(Ref(ONE, "c-1", 1), errors.INTERRUPTED)
    rig.lost(Ref(ONE, "c-1", 1), streamed={"a": b"so f"})
    rig.done(Ref(ONE, "c-1", 2))
    rig.close(ONE)
    rig.tell(events.SlotFreed("e-1", Ref(ONE, "c-2", 1)))
    rig.fire(TimerKind.FORGET, ONE)
    state = rig.machine.state
    assert set(state.sessions) == {OTHER}
    assert (state.fleet.queued_calls(), state.orphans, state.unserved_since) == (0, {}, {})
    assert list(state.engines["e-1"].running) == []
