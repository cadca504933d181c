"""What readers want: lazy sessions, criteria, cancels, and requests that come twice."""

from __future__ import annotations

import pytest
from tests.support.machine import PLAIN, SESSION, TENANT, Rig, new, only

from parrot_manager.core import admission, deducing, events
from parrot_manager.core.commands import Cancel, Dispatch, Persist, PublishEnd
from parrot_manager.core.criteria import Criteria, Objective, ObjectiveKind
from parrot_manager.core.estimates import Estimates
from parrot_manager.core.events import CallsCancelled, VariablesWanted, Wanted
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import CallState, Ref, VariableState
from parrot_manager.core.objectives import Leeway, deduce
from parrot_manager.core.state import LiveSession
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

LATENCY = Criteria(ObjectiveKind.LATENCY)
THROUGHPUT = Criteria(ObjectiveKind.THROUGHPUT)


def lazy_rig() -> Rig:
    """A machine with an open lazy session and one engine."""
    rig = Rig()
    rig.tell(
        admission.admit_session(
            PLAIN, rig.now_ms, session_id=SESSION, tenant=TENANT, label="", timeout_ms=0, lazy=True
        )
    )
    rig.engine(capacity=9)
    return rig


@pytest.fixture
def rig() -> Rig:
    """A machine with an open session and one engine."""
    rig = Rig()
    rig.open()
    rig.engine(capacity=9)
    return rig


def sent(rig: Rig) -> list[str]:
    """The calls that were sent, in order."""
    return [command.call.id for command in only(Dispatch, rig.said)]


def want(rig: Rig, variable_id: str, criteria: Criteria | None = None) -> None:
    """Somebody reads a variable."""
    rig.tell(VariablesWanted(SESSION, (Wanted(variable_id, criteria),)))


def test_in_a_lazy_session_nothing_runs_until_somebody_reads() -> None:
    rig = lazy_rig()
    rig.submit([new("one", "a", "b"), new("two", "b", "c"), new("aside", "a", "x")], ["a"])
    assert sent(rig) == []
    assert rig.call("c-1").state is CallState.ACCEPTED
    want(rig, "c")
    assert sent(rig) == ["c-1"]
    rig.done(Ref(SESSION, "c-1", 1))
    rig.done(Ref(SESSION, "c-2", 1))
    assert rig.call("c-2").state is CallState.DONE
    assert rig.call("c-3").state is CallState.ACCEPTED


def test_a_lazy_batch_that_says_what_will_be_read_runs_that() -> None:
    rig = lazy_rig()
    rig.submit([new("one", "a", "b"), new("two", "a", "c")], ["a"], wanted=[Wanted("c")])
    assert sent(rig) == ["c-2"]


def test_what_was_wanted_of_a_lazy_session_is_stored_and_runs_after_a_restart() -> None:
    rig = lazy_rig()
    rig.submit([new("one", "a", "b"), new("two", "b", "c"), new("aside", "a", "x")], ["a"])
    want(rig, "c")
    live = rig.machine.state.sessions[SESSION]
    stored = {v.id: v for persist in only(Persist, rig.said) for v in persist.changes.variables}
    assert stored["c"].criteria == LATENCY
    fresh = Rig(Machine(PLAIN), rig.now_ms)
    fresh.engine()
    calls, variables = tuple(live.calls.values()), tuple(live.variables.values())
    fresh.tell(events.SessionRestored(live.session, calls, variables, ()))
    assert sent(fresh) == ["c-1"]
    assert fresh.call("c-3").state is CallState.ACCEPTED


def test_a_lazy_call_whose_input_failed_fails_though_nobody_asked_for_it() -> None:
    rig = lazy_rig()
    rig.submit([new("one", "a", "b"), new("two", "b", "c")], ["a"])
    want(rig, "b")
    rig.failed(Ref(SESSION, "c-1", 1))
    assert rig.call("c-2").state is CallState.FAILED


def test_closing_a_lazy_session_ends_what_never_ran() -> None:
    rig = lazy_rig()
    rig.submit([new("one", "a", "b")], ["a"])
    rig.close()
    assert rig.call("c-1").state is CallState.CANCELLED


def test_a_stricter_reader_upgrades_and_a_laxer_one_does_not(rig: Rig) -> None:
    rig.submit([new("one", "a", "b"), new("two", "b", "c")], ["a"], wanted=[Wanted("c", THROUGHPUT)])
    objective = rig.call("c-2").objective
    assert objective is not None
    assert objective.kind is ObjectiveKind.THROUGHPUT
    want(rig, "c", LATENCY)
    objective = rig.call("c-2").objective
    assert objective is not None
    assert objective.kind is ObjectiveKind.LATENCY
    assert rig.variable("c").criteria == LATENCY
    want(rig, "c", THROUGHPUT)
    assert rig.variable("c").criteria == LATENCY


def test_of_two_deadlines_the_earlier_binds(rig: Rig) -> None:
    rig.submit([new("one", "a", "b")], ["a"])
    for at_ms in (9_000, 5_000, 7_000):
        want(rig, "b", Criteria(ObjectiveKind.DEADLINE, at_ms))
    assert rig.variable("b").criteria == Criteria(ObjectiveKind.DEADLINE, 5_000)


def test_wanting_what_has_ended_or_is_not_there_changes_nothing(rig: Rig) -> None:
    rig.submit([new("one", "a", "b")], ["a"])
    for name in ("a", "nothing"):
        assert rig.tell(VariablesWanted(SESSION, (Wanted(name, LATENCY),))) == []
    assert rig.tell(VariablesWanted("s00-00000000000000ff", (Wanted("b"),))) == []


def test_a_batch_that_wants_what_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(Fault) as refused:
        admission.admit_calls(
            rig.machine.state, TENANT, SESSION, [new("one", "", "b")], [], now_ms=0, wanted=[Wanted("z")]
        )
    assert refused.value.kind is errors.UNPRODUCED_VARIABLE
    assert refused.value.field == "wanted[0].variable_id"


def tree(rig: Rig) -> None:
    """c-1 and c-2 feed c-3, which feeds c-4; c-2 feeds c-5 too."""
    rig.submit(
        [
            new("left", "a", "l"),
            new("right", "a", "r"),
            new("join", "l r", "j"),
            new("after", "j", "z"),
            new("aside", "r", "s"),
        ],
        ["a"],
    )


def test_a_cancelled_call_takes_its_dependents_along_and_no_other(rig: Rig) -> None:
    tree(rig)
    told = rig.tell(CallsCancelled(SESSION, ("c-3",)))
    states = [rig.call(f"c-{n}").state for n in range(1, 6)]
    assert states == [
        CallState.DISPATCHED,
        CallState.DISPATCHED,
        CallState.CANCELLED,
        CallState.CANCELLED,
        CallState.WAITING,
    ]
    assert only(Cancel, told) == []
    assert {command.variable.id for command in only(PublishEnd, told)} == {"j", "z"}
    assert rig.variable("j").state is VariableState.CANCELLED


def test_a_cancelled_subtree_takes_along_what_nobody_else_needs(rig: Rig) -> None:
    tree(rig)
    told = rig.tell(CallsCancelled(SESSION, ("c-3",), subtree=True))
    assert [rig.call(f"c-{n}").state for n in (1, 2)] == [CallState.CANCELLED, CallState.DISPATCHED]
    assert [command.ref.call_id for command in only(Cancel, told)] == ["c-1"]


def test_a_producer_that_a_reader_asked_for_stays(rig: Rig) -> None:
    tree(rig)
    want(rig, "l", LATENCY)
    rig.tell(CallsCancelled(SESSION, ("c-3",), subtree=True))
    assert rig.call("c-1").state is CallState.DISPATCHED


def test_cancelling_what_has_ended_changes_nothing(rig: Rig) -> None:
    rig.submit([new("one", "a", "b")], ["a"])
    rig.done(Ref(SESSION, "c-1", 1))
    assert rig.tell(CallsCancelled(SESSION, ("c-1",))) == []


def test_cancelling_a_call_that_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(Fault) as refused:
        admission.admit_cancel(rig.machine.state, TENANT, SESSION, ["c-7"], subtree=False)
    assert (refused.value.kind, refused.value.call_id) == (errors.NOT_FOUND, "c-7")


def keyed(rig: Rig, key: str, digest: bytes) -> events.CallsAccepted:
    """A batch under an idempotency key."""
    return admission.admit_calls(
        rig.machine.state, TENANT, SESSION, [new("one", "", f"v-{key}")], [], now_ms=0, key=key, digest=digest
    )


def test_a_batch_sent_twice_under_one_key_is_one_and_another_one_is_refused(rig: Rig) -> None:
    rig.tell(keyed(rig, "k", b"1"))
    batches = rig.machine.state.sessions[SESSION].batches
    found = admission.find_batch(batches, "k", b"1")
    assert found is not None
    assert found.call_ids == ("c-1",)
    with pytest.raises(Fault) as refused:
        admission.find_batch(batches, "k", b"2")
    assert refused.value.kind is errors.IDEMPOTENCY_CONFLICT
    assert admission.find_batch(batches, "other", b"1") is None
    assert admission.find_batch(batches, "", b"1") is None


def test_a_full_queue_refuses_a_batch_and_nothing_of_it_is_there(rig: Rig) -> None:
    full = Fault(errors.QUEUE_FULL, "too much waits", retry_after_ms=1_000)
    rig.machine.state.fleet.refuse = lambda tenant, new_calls: full  # type: ignore[method-assign]
    with pytest.raises(Fault) as refused:
        rig.submit([new("one", "", "b")])
    assert refused.value.kind is errors.QUEUE_FULL
    assert rig.machine.state.sessions[SESSION].calls == {}


def test_a_session_takes_so_many_calls_and_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_CALLS", 2)
    rig.submit([new("one", "", "a"), new("two", "", "b")])
    with pytest.raises(Fault, match=r"has 2 calls.*open another one") as refused:
        rig.submit([new("three", "", "c")])
    assert refused.value.kind is errors.TOO_LARGE
    assert len(rig.machine.state.sessions[SESSION].calls) == 2


def test_calls_that_come_one_by_one_are_looked_at_together(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost a call stays bounded, and each has its objective in a moment."""
    looked: list[int] = []

    def counted(live: LiveSession, estimates: Estimates, now_ms: int, leeway: Leeway) -> dict[str, Objective]:
        looked.append(len(live.unfinished))
        return deduce(live, estimates, now_ms, leeway)

    monkeypatch.setattr(deducing, "deduce", counted)
    for number in range(400):
        rig.submit([new("f", "", f"v{number}")])
    assert sum(looked) < 16 * 400
    assert rig.call("c-400").objective is None
    rig.fire(events.TimerKind.OBJECTIVES, SESSION)
    assert rig.call("c-400").objective is not None
    assert looked[-1] == 400
