"""Calls that the client runs: offered when their inputs are there, one worker's at a time, ended in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.machine import SESSION, TENANT, Rig, new, only

from parrot_manager.core import claims, commands, events, native_events
from parrot_manager.core.model import Call, CallState, Failure, NativeKind, SessionState, Value, VariableState
from parrot_manager.core.submissions import NewCall
from parrot_runtime import errors
from parrot_runtime.errors import Fault

CALL = "c-1"
TIMEOUT_MS = 60_000
LEASE_MS = 15_000


def native(inputs: str = "", outputs: str = "out", timeout_ms: int = TIMEOUT_MS) -> NewCall:
    """A call that the client runs."""
    call = new("f", inputs, outputs, model="")
    return replace(call, native=NativeKind.CLIENT, native_timeout_ms=timeout_ms)


def offered() -> Rig:
    """A session with one native call, whose inputs are there."""
    rig = Rig()
    rig.open()
    rig.submit([native("a")], ["a"])
    return rig


def claim(rig: Rig, worker: str = "w") -> list[commands.Command]:
    """A worker claims the call, if it may."""
    live = rig.machine.state.sessions[SESSION]
    assert claims.admit_claim(live, live.calls[CALL], worker)
    return rig.tell(native_events.CallClaimed(SESSION, CALL, worker))


def done(rig: Rig, worker: str = "w", text: bytes = b"made") -> list[commands.Command]:
    """A worker hands in the call's output."""
    return rig.tell(native_events.NativeDone(SESSION, CALL, worker, (Value("out", text),)))


def refusal(rig: Rig, worker: str) -> Fault:
    """Why a worker does not get the call."""
    live = rig.machine.state.sessions[SESSION]
    with pytest.raises(Fault) as caught:
        claims.admit_claim(live, live.calls[CALL], worker)
    return caught.value


def timer(rig: Rig) -> list[commands.Command]:
    """The call's time is over, as it was last set."""
    return rig.fire(events.TimerKind.CLAIM, f"{SESSION}/{CALL}")


def stored(rig: Rig) -> list[Call]:
    """The snapshots of the call that were persisted."""
    found = [command.changes for command in only(commands.Persist, rig.said)]
    return [call for changes in found for call in (*changes.new_calls, *changes.calls) if call.id == CALL]


def restarted(rig: Rig) -> Rig:
    """The session with another manager, as the store has it."""
    live = rig.machine.state.sessions[SESSION]
    calls = {call.id: call for call in live.calls.values()}
    calls.update((call.id, call) for call in stored(rig))
    again = Rig(now_ms=rig.now_ms)
    again.tell(
        events.SessionRestored(live.session, tuple(calls.values()), tuple(live.variables.values()), ())
    )
    return again


def test_a_call_waits_for_its_inputs_and_is_then_offered_to_no_engine() -> None:
    rig = Rig()
    rig.open()
    rig.engine()
    rig.submit([native("a"), new("g", "", "a")])
    live = rig.machine.state.sessions[SESSION]
    assert rig.call(CALL).state is CallState.WAITING
    assert not claims.admit_claim(live, rig.call(CALL), "w")
    told = rig.done(rig.call("c-2").ref)
    assert rig.call(CALL).state is CallState.READY
    assert not only(commands.Dispatch, told)
    assert [call.state for call in stored(rig)] == [CallState.READY]
    claim(rig)


def test_what_a_worker_made_is_committed_before_it_is_told_and_read_by_others() -> None:
    rig = Rig()
    rig.open()
    rig.engine()
    rig.submit([native(), new("g", "out", "end")])
    claim(rig)
    told = done(rig)
    kinds = [type(command) for command in told if getattr(command, "session_id", "") == SESSION]
    assert kinds.index(commands.Persist) < kinds.index(commands.PublishValue)
    assert rig.call(CALL).state is CallState.DONE
    assert (rig.variable("out").state, rig.variable("out").size_bytes) == (VariableState.READY, 4)
    assert only(commands.Dispatch, told)[0].call.id == "c-2"


def test_one_worker_has_a_call_and_gets_it_again() -> None:
    rig = offered()
    claim(rig, "one")
    assert rig.call(CALL).engine_id == "client/one"
    assert refusal(rig, "two").kind is errors.CLAIM_LOST
    assert not only(commands.Persist, claim(rig, "one"))
    rig.tell(native_events.CallClaimed(SESSION, CALL, "two"))
    done(rig, "two")
    assert rig.call(CALL).state is CallState.RUNNING
    done(rig, "one")
    assert rig.call(CALL).state is CallState.DONE


def test_a_second_result_changes_nothing() -> None:
    rig = offered()
    claim(rig)
    done(rig)
    assert not done(rig, text=b"another")
    assert rig.variable("out").size_bytes == 4
    assert claims.has_result(rig.call(CALL), "w")
    with pytest.raises(Fault, match="is done"):
        claims.has_result(rig.call(CALL), "another")


def test_a_function_that_fails_fails_what_reads_its_output() -> None:
    rig = Rig()
    rig.open()
    rig.submit([native(), new("g", "out", "end")])
    claim(rig)
    rig.tell(
        native_events.NativeFailed(SESSION, CALL, "w", Failure.of(errors.NATIVE_FAILED, "division by zero"))
    )
    for call_id, kind in ((CALL, errors.NATIVE_FAILED), ("c-2", errors.UPSTREAM_FAILED)):
        failure = rig.call(call_id).failure
        assert failure is not None
        assert failure.type == kind.type
    assert claims.has_result(rig.call(CALL), "w")


def test_a_call_that_nobody_claims_fails_in_time_and_says_how_to_mend_it() -> None:
    rig = offered()
    timer(rig)
    failure = rig.call(CALL).failure
    assert rig.now_ms == 1_000 + TIMEOUT_MS
    assert failure is not None
    assert failure.type == errors.CLIENT_LOST.type
    assert "keep the program running" in failure.message
    assert refusal(rig, "w").cause_type == errors.CLIENT_LOST.type


def test_a_worker_that_is_heard_of_keeps_its_call_and_a_silent_one_fails_it() -> None:
    rig = offered()
    claim(rig)
    rig.now_ms += LEASE_MS - 1
    rig.tell(native_events.ClaimRenewed(SESSION, CALL, "w"))
    rig.now_ms += 1
    rig.tell(events.TimerFired(events.Timer(events.TimerKind.CLAIM, f"{SESSION}/{CALL}")))
    assert rig.call(CALL).state is CallState.RUNNING
    timer(rig)
    failure = rig.call(CALL).failure
    assert failure is not None
    assert failure.type == errors.CLIENT_LOST.type
    assert "'w'" in failure.message
    with pytest.raises(Fault, match="was not heard of for 15 s"):
        claims.admit_renewal(rig.machine.state.sessions[SESSION], rig.call(CALL), "w")


def test_only_the_worker_that_has_it_may_renew() -> None:
    rig = offered()
    live = rig.machine.state.sessions[SESSION]
    for worker in ("w", "other"):
        with pytest.raises(Fault, match="another worker has it"):
            claims.admit_renewal(live, live.calls[CALL], worker)
    claim(rig)
    claims.admit_renewal(live, live.calls[CALL], "w")


def test_a_cancel_takes_the_call_from_its_worker() -> None:
    rig = offered()
    claim(rig)
    rig.tell(events.CallsCancelled(SESSION, (CALL,)))
    done(rig)
    assert rig.call(CALL).state is CallState.CANCELLED
    assert refusal(rig, "w").cause_type == errors.CANCELLED.type


def test_a_session_that_ends_takes_its_calls_from_workers() -> None:
    rig = offered()
    claim(rig)
    rig.close()
    done(rig)
    assert (rig.session().state, rig.call(CALL).state) == (SessionState.CANCELLED, CallState.CANCELLED)
    assert not timer(rig)


def test_a_claim_survives_the_managers_death_with_a_lease_anew() -> None:
    rig = offered()
    claim(rig)
    rig.now_ms += LEASE_MS - 1
    again = restarted(rig)
    assert refusal(again, "other").kind is errors.CLAIM_LOST
    again.now_ms += LEASE_MS - 1
    claim(again)
    done(again)
    assert again.call(CALL).state is CallState.DONE


def test_a_worker_that_died_with_the_manager_is_found_out() -> None:
    rig = offered()
    claim(rig)
    again = restarted(rig)
    timer(again)
    assert again.now_ms == rig.now_ms + LEASE_MS
    failure = again.call(CALL).failure
    assert failure is not None
    assert failure.type == errors.CLIENT_LOST.type


def test_how_long_a_call_waits_for_a_worker_does_not_begin_anew() -> None:
    rig = offered()
    rig.now_ms += 10_000
    again = restarted(rig)
    timer(again)
    assert again.now_ms == 1_000 + TIMEOUT_MS


def test_workers_find_the_call_with_another_manager_though_its_time_is_over() -> None:
    rig = offered()
    rig.now_ms += TIMEOUT_MS
    again = restarted(rig)
    assert again.call(CALL).state is CallState.READY
    claim(again)


def test_what_was_made_before_the_managers_death_is_told_again() -> None:
    rig = offered()
    claim(rig)
    done(rig)
    again = restarted(rig)
    assert [command.variable.id for command in only(commands.PublishStored, again.said)] == ["out"]


def test_a_lazy_session_offers_what_somebody_wants_and_keeps_what_is_claimed() -> None:
    rig = Rig()
    rig.tell(events.SessionOpened(replace(offered().session(), lazy=True)))
    rig.submit([native("a")], ["a"])
    live = rig.machine.state.sessions[SESSION]
    assert not claims.admit_claim(live, rig.call(CALL), "w")
    rig.tell(events.VariablesWanted(SESSION, (events.Wanted("out"),)))
    claim(rig)
    kept = live.variables["out"]
    live.variables["out"] = replace(kept, criteria=None)
    again = restarted(rig)
    done(again)
    assert again.call(CALL).state is CallState.DONE


def test_what_a_native_call_makes_is_not_sent_ahead_of() -> None:
    rig = Rig()
    rig.open()
    rig.engine()
    rig.submit([native(), new("g", "out", "end")])
    claim(rig)
    assert rig.call("c-2").state is CallState.WAITING


def test_unfinished_native_calls_count_for_their_tenants_limit() -> None:
    rig = offered()
    fleet = rig.machine.state.fleet
    assert len(fleet._quotas._tenants) == 1
    claim(rig)
    done(rig)
    assert TENANT not in fleet._quotas._counts


@pytest.mark.parametrize("kind", [None, NativeKind.SANDBOX])
def test_workers_get_only_what_is_theirs_to_run(kind: NativeKind | None) -> None:
    rig = Rig()
    rig.open()
    rig.submit([replace(new("f", "", "out", model=""), native=kind)])
    fault = refusal(rig, "w")
    assert fault.kind is errors.INVALID_REQUEST
    assert "not the client's to run" in fault.message
