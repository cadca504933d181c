"""A consumer that is sent ahead, while what it reads is still being made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.machine import SESSION, Eager, Rig, new, only

from parrot_manager.core import commands, events
from parrot_manager.core.commands import Cancel, Dispatch, Persist, Probe
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import CallState, Failure, Ref, VariableState
from parrot_manager.core.state import Policy
from parrot_runtime import errors

C1, C2 = Ref(SESSION, "c-1", 1), Ref(SESSION, "c-2", 1)


@pytest.fixture
def rig() -> Rig:
    """A machine that sends consumers ahead, and one engine."""
    rig = Rig(Machine(Policy()))
    rig.machine.state.fleet = Eager()
    rig.open()
    rig.engine()
    return rig


def chain(rig: Rig, length: int = 2) -> list[commands.Command]:
    """Calls c-1, c-2, ... each reading what the one before makes; the first runs."""
    names = "abcdefgh"
    rig.submit([new(f"f{n}", names[n], names[n + 1]) for n in range(length)], ["a"])
    rig.tell(events.AttemptStarted(C1))
    return rig.said


def sent(told: Sequence[commands.Command]) -> list[str]:
    """The calls that are sent."""
    return [command.call.id for command in only(Dispatch, told)]


def test_a_consumer_is_sent_while_its_producer_runs_and_told_what_is_still_to_come(rig: Rig) -> None:
    told = chain(rig)
    assert sent(told) == ["c-1", "c-2"]
    ahead = only(Dispatch, told)[1]
    assert [name for name, _ in ahead.pending] == ["b"]
    assert ahead.republish == ()
    assert rig.call("c-2").state is CallState.DISPATCHED


def test_it_needs_nothing_more_when_its_input_comes(rig: Rig) -> None:
    chain(rig)
    told = rig.done(C1)
    assert sent(told) == []
    assert rig.call("c-2").ready_ms == rig.now_ms
    rig.done(C2)
    assert (rig.call("c-2").state, rig.call("c-2").attempt) == (CallState.DONE, 1)


def test_only_the_next_in_line_is_sent_ahead(rig: Rig) -> None:
    chain(rig, 3)
    assert sent(rig.said) == ["c-1", "c-2"]
    rig.done(C1)
    rig.tell(events.AttemptStarted(C2))
    assert sent(rig.said) == ["c-1", "c-2", "c-3"]


def test_a_call_that_waits_for_something_nobody_makes_yet_is_not_sent(rig: Rig) -> None:
    rig.engine("e-n", model="n")
    rig.tell(events.EngineDraining("e-n", 1))
    rig.submit([new("one", "a", "b"), new("never", "", "x", model="n"), new("two", "b x", "c")], ["a"])
    rig.tell(events.AttemptStarted(C1))
    assert sent(rig.said) == ["c-1"]


def test_when_its_producer_fails_it_is_stopped_and_fails_with_the_cause(rig: Rig) -> None:
    chain(rig)
    told = rig.failed(C1, errors.PROMPT_TOO_LONG)
    assert [command.ref for command in only(Cancel, told)] == [C2]
    failure = rig.call("c-2").failure
    assert failure is not None
    assert (failure.type, failure.cause_call_id) == ("upstream_failed", "c-1")
    assert rig.variable("c").state is VariableState.FAILED


def test_when_its_producer_is_moved_it_stays(rig: Rig) -> None:
    chain(rig)
    rig.failed(C1, errors.INTERRUPTED)
    told = rig.lost(C1, streamed={"b": b"so f"})
    assert sent(told) == ["c-1"]
    assert rig.call("c-2").ref == C2
    rig.done(Ref(SESSION, "c-1", 2))
    rig.done(C2)
    assert (rig.call("c-2").state, rig.call("c-2").attempt) == (CallState.DONE, 1)


def test_when_its_own_engine_dies_it_waits_again_with_the_others(rig: Rig) -> None:
    chain(rig)
    told = rig.die()
    assert {probe.ref for probe in only(Probe, told)} == {C1, C2}
    rig.lost(C2)
    assert rig.call("c-2").state is CallState.WAITING
    rig.engine("e-2")
    rig.lost(C1)
    rig.tell(events.AttemptStarted(Ref(SESSION, "c-1", 2)))
    rig.done(Ref(SESSION, "c-1", 2))
    assert rig.call("c-2").attempt == 2
    rig.done(Ref(SESSION, "c-2", 2))
    assert rig.call("c-2").state is CallState.DONE


def test_an_early_one_takes_no_place_from_its_producer(rig: Rig) -> None:
    """Otherwise the two would wait for each other."""
    rig.die()
    rig.engine("e-2", capacity=1)
    chain(rig)
    rig.tell(events.AttemptFailed(C1, Failure.of(errors.INTERRUPTED, "it is being stopped")))
    rig.tell(events.SlotFreed("e-2", C1))
    rig.lost(C1)
    assert rig.call("c-1").attempt == 2


def test_an_input_that_came_before_it_was_sent_is_not_pending(rig: Rig) -> None:
    rig.submit([new("one", "a", "b"), new("two", "a", "x"), new("both", "b x", "c")], ["a"])
    rig.tell(events.AttemptStarted(C1))
    rig.done(C1)
    rig.done(C2)
    (joint,) = [command for command in only(Dispatch, rig.said) if command.call.id == "c-3"]
    assert {name for name, _ in joint.pending} <= {"b", "x"}
    rig.done(Ref(SESSION, "c-3", 1))
    assert rig.call("c-3").state is CallState.DONE
    assert len([p for p in only(Persist, rig.said) for v in p.changes.values if v.variable_id == "c"]) == 1


def test_one_that_is_done_before_its_producer_is_committed_ends_behind_it(rig: Rig) -> None:
    chain(rig)
    assert only(Persist, rig.done(C2)) == []
    assert rig.call("c-2").state is CallState.DISPATCHED
    told = rig.done(C1)
    assert [call.state for call in only(Persist, told)[0].changes.calls] == [CallState.DONE] * 2


def test_its_early_end_stands_whatever_is_said_of_it_later(rig: Rig) -> None:
    chain(rig)
    rig.done(C2)
    rig.failed(C2, errors.INTERRUPTED)
    rig.lost(C2)
    rig.done(C1)
    assert (rig.call("c-2").state, rig.call("c-2").attempt) == (CallState.DONE, 1)


def test_its_early_end_is_worth_nothing_when_the_producer_comes_to_nothing(rig: Rig) -> None:
    chain(rig)
    rig.done(C2)
    rig.failed(C1)
    assert rig.call("c-2").state is CallState.FAILED
    assert rig.variable("c").state is VariableState.FAILED


def test_one_that_is_adopted_takes_no_place_while_its_producer_waits_for_another_try(rig: Rig) -> None:
    """Otherwise the producer would never find a place, and the two would wait for each other."""
    rig.die()
    rig.engine("e-2", capacity=1)
    chain(rig)
    for attempt in (1, 2):
        rig.failed(Ref(SESSION, "c-1", attempt), errors.UNAVAILABLE)
        rig.lost(Ref(SESSION, "c-1", attempt))
    assert rig.call("c-1").state is CallState.READY
    rig.engine("e-2", capacity=1, epoch=2, claimed=(C2,))
    rig.fire(events.TimerKind.RETRY, f"{SESSION}/c-1")
    assert rig.call("c-1").attempt == 3


def test_it_gives_way_when_its_producer_finds_no_place_and_loses_nothing_by_that(rig: Rig) -> None:
    """What it holds may be what the producer lacks."""
    rig.die()
    rig.engine("e-2", capacity=1)
    chain(rig)
    rig.submit([new("aside", "", "x")])
    rig.failed(C1, errors.INTERRUPTED)
    assert rig.call("c-3").state is CallState.DISPATCHED
    told = rig.lost(C1, streamed={"b": b"so f"})
    assert [command.ref for command in only(Cancel, told)] == [C2]
    rig.failed(C2, errors.ENGINE_LOST)
    rig.lost(C2)
    assert (rig.call("c-2").state, rig.call("c-2").losses) == (CallState.WAITING, 0)
    told = rig.done(Ref(SESSION, "c-3", 1))
    rig.tell(events.AttemptStarted(Ref(SESSION, "c-1", 2)))
    rig.done(Ref(SESSION, "c-1", 2))
    rig.done(rig.call("c-2").ref)
    assert rig.call("c-2").state is CallState.DONE


def test_outputs_it_had_complete_when_it_was_lost_are_committed_behind_its_inputs(rig: Rig) -> None:
    rig.submit([new("one", "a", "b"), new("two", "b", "c d"), new("reader", "c", "e")], ["a"])
    rig.tell(events.AttemptStarted(C1))
    rig.failed(C2, errors.INTERRUPTED)
    told = rig.lost(C2, streamed={"d": b"so f"}, made=["c"])
    assert [value for persist in only(Persist, told) for value in persist.changes.values] == []
    assert rig.variable("c").state is not VariableState.READY
    again = only(Dispatch, rig.said)[-1]
    assert (again.call.id, [variable.id for variable in again.made]) == ("c-2", ["c"])
    rig.failed(C1)
    assert {rig.variable(name).state for name in "cde"} == {VariableState.FAILED}
