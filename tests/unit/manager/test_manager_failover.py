"""An engine's death, a failure that may pass, a restart: the call goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.machine import PLAIN, SESSION, TENANT, Rig, new, only

from parrot_manager.core import commands, events
from parrot_manager.core.commands import Adopt, Arm, Cancel, Dispatch, Persist, Probe
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import (
    AttemptState,
    Call,
    CallState,
    Failure,
    Ref,
    SessionState,
    Streamed,
    Value,
    VariableState,
)
from parrot_runtime import errors

C1 = Ref(SESSION, "c-1", 1)
PASSING = [errors.ENGINE_LOST, errors.UNAVAILABLE, errors.INTERRUPTED]


@pytest.fixture
def rig() -> Rig:
    """A machine with an open session and one engine."""
    rig = Rig()
    rig.open()
    rig.engine()
    return rig


def one_call(rig: Rig, outputs: str = "b") -> None:
    """A call that runs on e-1."""
    rig.submit([new("one", "a", outputs)], ["a"])


def dispatches(told: Sequence[commands.Command]) -> list[Dispatch]:
    """The programs that are sent."""
    return only(Dispatch, told)


def last_attempt(call: Call) -> Ref:
    """The attempt a call is at."""
    return call.ref


def test_a_dead_engine_is_fenced_and_its_traces_are_looked_for_before_anything_runs_again(rig: Rig) -> None:
    one_call(rig)
    rig.engine("e-2")
    told = rig.die()
    assert only(Probe, told) == [Probe(C1, TENANT, "e-1", ("b",), restarted=False, fence=True)]
    assert dispatches(told) == []


def test_that_an_output_began_is_stored_with_what_comes_next(rig: Rig) -> None:
    one_call(rig)
    (began,) = only(Persist, rig.tell(events.AttemptStreaming(C1, "b")))
    assert began.can_wait
    assert [variable.state for variable in began.changes.variables] == [VariableState.STREAMING]
    assert not any(persist.can_wait for persist in only(Persist, rig.done(C1)))


def test_what_was_streamed_is_gone_on_behind_on_another_engine(rig: Rig) -> None:
    one_call(rig)
    rig.tell(events.AttemptStreaming(C1, "b"))
    rig.engine("e-2")
    rig.die()
    (again,) = dispatches(rig.lost(C1, streamed={"b": b"so f"}))
    assert (again.engine_id, again.call.attempt, again.call.losses) == ("e-2", 2, 1)
    assert again.resume == (Streamed("b", b"so f"),)
    assert rig.variable("b").state is VariableState.STREAMING
    rig.done(last_attempt(rig.call("c-1")))
    assert rig.call("c-1").state is CallState.DONE


def test_outputs_that_were_complete_are_committed_at_once_and_made_only_once(rig: Rig) -> None:
    one_call(rig, "b c")
    rig.submit([new("reader", "b", "d")])
    rig.engine("e-2")
    rig.die()
    told = rig.lost(C1, streamed={"c": b"half"}, made=["b"])
    committed = [value for persist in only(Persist, told) for value in persist.changes.values]
    assert committed == [Value("b", b"made")]
    again, reader = sorted(dispatches(told), key=lambda command: command.call.id)
    assert [variable.id for variable in again.made] == ["b"]
    assert [text.variable_id for text in again.resume] == ["c"]
    assert reader.call.id == "c-2"
    told = rig.done(last_attempt(rig.call("c-1")))
    assert [value for persist in only(Persist, told) for value in persist.changes.values] == [
        Value("c", b"made")
    ]


def test_an_attempt_that_had_made_everything_is_done(rig: Rig) -> None:
    one_call(rig)
    rig.die()
    rig.tell(events.AttemptDone(C1, (Value("b", b"made"),)))
    assert rig.call("c-1").state is CallState.DONE


def test_an_engine_that_was_given_up_is_told_to_stop_should_it_be_there_after_all(rig: Rig) -> None:
    one_call(rig)
    rig.die()
    assert [command.ref for command in only(Cancel, rig.lost(C1))] == [C1]


def test_losses_are_bounded_and_their_tries_are_further_and_further_apart(rig: Rig) -> None:
    one_call(rig)
    waits: list[int] = []
    for attempt in range(1, 7):
        ref = Ref(SESSION, "c-1", attempt)
        assert rig.call("c-1").ref == ref
        rig.die(epoch=attempt)
        told = rig.lost(ref)
        waits += [arm.at_ms - rig.now_ms for arm in only(Arm, told) if arm.timer.kind.value == "retry"]
        rig.engine(epoch=attempt + 1)
        if attempt not in (1, 6):
            assert rig.call("c-1").state is CallState.READY
            rig.fire(events.TimerKind.RETRY, f"{SESSION}/c-1")
    failure = rig.call("c-1").failure
    assert failure is not None
    assert (failure.type, failure.may_retry) == ("engine_lost", True)
    assert waits == [100, 200, 400, 800]


@pytest.mark.parametrize("kind", PASSING)
def test_a_failure_that_may_pass_is_tried_again_behind_what_was_streamed(rig: Rig, kind: errors.Kind) -> None:
    one_call(rig)
    told = rig.failed(C1, kind)
    assert only(Probe, told) == [Probe(C1, TENANT, "e-1", ("b",), restarted=False, fence=False)]
    told = rig.lost(C1, streamed={"b": b"so f"})
    assert [command.resume for command in dispatches(told)] == [(Streamed("b", b"so f"),)]
    (ended,) = [a for a in only(Persist, told)[0].changes.attempts if a.ref == C1]
    assert ended.state is AttemptState.FAILED


@pytest.mark.parametrize(
    "kind",
    [
        errors.PROMPT_TOO_LONG,
        errors.TRANSFORM_FAILED,
        errors.INVALID_SAMPLING,
        errors.NOT_RESUMABLE,
        errors.TOO_LARGE,
        errors.DEADLINE_EXCEEDED,
    ],
)
def test_what_would_fail_again_is_not_tried_again(rig: Rig, kind: errors.Kind) -> None:
    one_call(rig)
    rig.engine("e-2")
    assert only(Probe, rig.failed(C1, kind)) == []
    failure = rig.call("c-1").failure
    assert failure is not None
    assert failure.type == kind.type


def test_of_a_call_that_fails_for_good_the_outputs_that_were_whole_are_kept(rig: Rig) -> None:
    one_call(rig, "b c")
    rig.submit([new("reader", "b", "d"), new("other", "c", "e")])
    (probe,) = only(Probe, rig.failed(C1, errors.TRANSFORM_FAILED))
    assert rig.call("c-1").state is not CallState.FAILED
    told = rig.lost(probe.ref, made=["b"])
    assert rig.variable("b").state is VariableState.READY
    assert rig.variable("c").state is VariableState.FAILED
    assert rig.call("c-1").state is CallState.FAILED
    assert rig.call("c-3").state is CallState.FAILED
    assert [command.call.id for command in dispatches(told)] == ["c-2"]


def test_a_look_that_fails_by_itself_is_not_repeated_for_ever(rig: Rig) -> None:
    one_call(rig, "b c")
    rig.die()
    rig.tell(events.AttemptFailed(C1, Failure.of(errors.INTERNAL, "a bug"), blind=True))
    assert rig.call("c-1").state is CallState.FAILED


def test_an_engine_that_could_not_run_a_call_is_not_asked_again(rig: Rig) -> None:
    one_call(rig)
    rig.engine("e-2")
    rig.failed(C1, errors.ENGINE_ERROR)
    (again,) = dispatches(rig.lost(C1))
    assert again.engine_id == "e-2"
    rig.failed(again.call.ref, errors.ENGINE_ERROR)
    failure = rig.call("c-1").failure
    assert failure is not None
    assert failure.type == "engine_error"


def test_an_error_on_the_only_engine_is_the_calls_end(rig: Rig) -> None:
    one_call(rig)
    assert only(Probe, rig.failed(C1, errors.ENGINE_ERROR)) == []
    assert rig.call("c-1").state is CallState.FAILED


def test_a_late_answer_about_an_older_attempt_changes_nothing(rig: Rig) -> None:
    one_call(rig)
    rig.engine("e-2")
    rig.die()
    rig.lost(C1)
    assert rig.call("c-1").attempt == 2
    assert only(Persist, rig.lost(C1, streamed={"b": b"late"})) == []
    assert rig.call("c-1").attempt == 2


def test_a_call_cancelled_while_it_backs_off_does_not_come_back(rig: Rig) -> None:
    one_call(rig)
    for attempt in (1, 2):
        rig.die(epoch=attempt)
        rig.lost(Ref(SESSION, "c-1", attempt))
        rig.engine(epoch=attempt + 1)
    rig.close()
    assert dispatches(rig.fire(events.TimerKind.RETRY, f"{SESSION}/c-1")) == []
    assert rig.call("c-1").state is CallState.CANCELLED


def test_a_call_between_two_attempts_is_not_dispatched_but_was(rig: Rig) -> None:
    one_call(rig)
    first_ms = rig.call("c-1").dispatched_ms
    rig.die()
    rig.lost(C1)
    waits = rig.call("c-1")
    assert (waits.state, waits.dispatched_ms) == (CallState.READY, 0)
    assert waits.marks.first_dispatched_ms == first_ms > 0
    rig.now_ms += 500
    rig.engine(epoch=2)
    assert rig.call("c-1").dispatched_ms == first_ms + 500
    assert rig.call("c-1").marks.first_dispatched_ms == first_ms


def test_a_program_that_was_never_sent_keeps_what_it_was_to_go_on_behind(rig: Rig) -> None:
    one_call(rig)
    rig.die()
    rig.engine("e-2")
    rig.lost(C1, streamed={"b": b"so f"})
    rig.engine("e-3")
    told = rig.tell(events.AttemptUndelivered(Ref(SESSION, "c-1", 2)))
    assert [command.resume for command in dispatches(told)] == [(Streamed("b", b"so f"),)]


def restart(rig: Rig, state: SessionState = SessionState.OPEN, **engines: int) -> Rig:
    """A new machine that takes up what a store would hold of the old one; `engines` are there before."""
    live = rig.machine.state.sessions[SESSION]
    attempts = {a.ref: a for persist in only(Persist, rig.said) for a in persist.changes.attempts}
    fresh = Rig(Machine(PLAIN), rig.now_ms + 1_000)
    for name, epoch in engines.items():
        fresh.engine(name.replace("_", "-"), epoch=epoch)
    fresh.tell(
        events.SessionRestored(
            replace(live.session, state=state),
            tuple(live.calls.values()),
            tuple(replace(variable, published_ms=0) for variable in live.variables.values()),
            tuple(attempts.values()),
            tuple(live.batches.values()),
        )
    )
    return fresh


def joined(rig: Rig, *claimed: Ref, engine_id: str = "e-1") -> list[commands.Command]:
    """An engine attaches after the restart, with what it says it runs."""
    before = len(rig.said)
    rig.engine(engine_id, epoch=9, claimed=claimed)
    return rig.said[before:]


def test_after_a_restart_nothing_is_looked_for_until_the_engine_was_asked(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig)
    assert only(Probe, fresh.said) == []
    assert dispatches(fresh.said) == []


def test_after_a_restart_what_an_engine_claims_goes_on_there(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig)
    told = joined(fresh, C1)
    assert not [c for c in told if isinstance(c, (Probe, Cancel, Dispatch))]
    fresh.done(C1)
    assert (fresh.call("c-1").state, fresh.call("c-1").attempt) == (CallState.DONE, 1)


def test_after_a_restart_what_its_engine_does_not_claim_is_looked_for(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig)
    assert only(Probe, joined(fresh)) == [Probe(C1, TENANT, "e-1", ("b",), restarted=True)]
    told = fresh.tell(events.AttemptLost(C1, restarted=True, streamed=(Streamed("b", b"so f"),)))
    (again,) = dispatches(told)
    assert (again.call.attempt, again.call.losses, again.resume) == (2, 0, (Streamed("b", b"so f"),))
    (ended,) = [a for a in only(Persist, told)[0].changes.attempts if a.ref == C1]
    assert ended.state is AttemptState.SUPERSEDED


def test_after_a_restart_an_engine_that_never_comes_is_fenced(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig)
    told = fresh.fire(events.TimerKind.ADOPT, SESSION)
    assert only(Probe, told) == [Probe(C1, TENANT, "e-1", ("b",), restarted=True, fence=True)]
    assert only(Probe, fresh.fire(events.TimerKind.ADOPT, SESSION)) == []


def test_an_attempt_that_another_engine_claims_takes_no_place_there(rig: Rig) -> None:
    """A manager that lost the shard without knowing hears of the attempt its successor gave that number."""
    one_call(rig)
    rig.engine("e-2", claimed=(C1,))
    assert rig.machine.state.engines["e-2"].running == {}
    assert rig.call("c-1").engine_id == "e-1"
    assert C1 in rig.machine.state.engines["e-1"].running


def test_a_take_over_asks_the_engines_that_are_there(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig, e_1=5)
    assert only(Adopt, fresh.said) == [Adopt("e-1", (C1,))]
    fresh.tell(events.EngineAdopted("e-1", 5, (C1,), ()))
    assert only(Probe, fresh.fire(events.TimerKind.ADOPT, SESSION)) == []
    assert C1 in fresh.machine.state.engines["e-1"].running


def test_what_an_engine_knows_nothing_of_is_looked_for_after_a_take_over(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig, e_1=5)
    told = fresh.tell(events.EngineAdopted("e-1", 5, (), (C1,)))
    assert only(Probe, told) == [Probe(C1, TENANT, "e-1", ("b",), restarted=True)]


def test_an_engine_that_dies_before_it_has_answered_is_fenced(rig: Rig) -> None:
    one_call(rig)
    fresh = restart(rig, e_1=5)
    told = fresh.die(epoch=5)
    assert only(Probe, told) == [Probe(C1, TENANT, "e-1", ("b",), restarted=False, fence=True)]


def test_a_call_that_was_lost_and_not_sent_on_is_looked_for_again_after_a_restart(rig: Rig) -> None:
    one_call(rig)
    rig.die()
    rig.lost(C1, streamed={"b": b"so f"})
    assert rig.call("c-1").state is CallState.READY
    fresh = restart(rig)
    assert dispatches(fresh.said) == []
    assert only(Probe, joined(fresh)) == [Probe(C1, TENANT, "e-1", ("b",), restarted=True)]


def test_a_session_that_goes_to_another_manager_leaves_without_a_word(rig: Rig) -> None:
    one_call(rig)
    rig.submit([new("two", "b", "c")])
    assert rig.tell(events.SessionReleased(SESSION)) == []
    assert rig.machine.state.sessions == {}
    assert rig.machine.state.fleet.queued_calls() == 0
    assert C1 not in rig.machine.state.engines["e-1"].running
