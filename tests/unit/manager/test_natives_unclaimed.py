"""A result that needs no claim is the claim and the end of its call in one: none is lost alone."""

from __future__ import annotations

import pytest
from tests.support.machine import SESSION, Rig, new, only
from tests.unit.manager.test_natives_machine import (
    CALL,
    claim,
    done,
    native,
    offered,
    restarted,
    stored,
    timer,
)

from parrot_manager.core import claims, commands, native_events
from parrot_manager.core.model import CallState, Failure, Value
from parrot_runtime import errors
from parrot_runtime.errors import Fault


def set_once(rig: Rig, worker: str = "w", text: bytes = b"made") -> list[commands.Command]:
    """A worker that has claimed nothing hands in the call's output, if it may."""
    live = rig.machine.state.sessions[SESSION]
    claims.admit_result(live, live.calls[CALL], worker, unclaimed=True)
    return rig.tell(native_events.NativeDone(SESSION, CALL, worker, (Value("out", text),), unclaimed=True))


def test_a_result_without_a_claim_is_stored_whole_or_not_at_all() -> None:
    rig = offered()
    told = set_once(rig)
    assert len(only(commands.Persist, told)) == 1
    assert [call.state for call in stored(rig)][-1] is CallState.DONE
    again = restarted(rig)
    assert again.call(CALL).state is CallState.DONE
    assert claims.has_result(again.call(CALL), "w")
    with pytest.raises(Fault):
        claims.has_result(again.call(CALL), "other")
    assert not timer(rig)


def test_whoever_fails_without_a_claim_fails_the_call() -> None:
    rig = offered()
    failure = Failure.of(errors.NATIVE_FAILED, "it broke")
    rig.tell(native_events.NativeFailed(SESSION, CALL, "w", failure, unclaimed=True))
    assert rig.call(CALL).state is CallState.FAILED
    assert claims.has_result(rig.call(CALL), "w")


def test_a_result_without_a_claim_takes_no_call_from_the_worker_that_has_it() -> None:
    rig = offered()
    claim(rig, "one")
    with pytest.raises(Fault) as caught:
        set_once(rig, "other")
    assert caught.value.kind is errors.CLAIM_LOST
    rig.tell(native_events.NativeDone(SESSION, CALL, "other", (Value("out", b"x"),), unclaimed=True))
    assert rig.call(CALL).state is CallState.RUNNING
    set_once(rig, "one")
    assert rig.call(CALL).state is CallState.DONE


def test_a_result_needs_a_claim_unless_it_says_otherwise_and_inputs_in_any_case() -> None:
    rig = offered()
    live = rig.machine.state.sessions[SESSION]
    with pytest.raises(Fault) as caught:
        claims.admit_result(live, live.calls[CALL], "w", unclaimed=False)
    assert caught.value.kind is errors.CLAIM_LOST
    done(rig)
    assert rig.call(CALL).state is CallState.READY
    waiting = Rig()
    waiting.open()
    waiting.submit([native("a"), new("g", "", "a")])
    with pytest.raises(Fault) as caught:
        set_once(waiting)
    assert caught.value.kind is errors.UNAVAILABLE
