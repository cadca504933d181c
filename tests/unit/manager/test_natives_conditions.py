"""Calls that the client runs if a condition holds: it is decided once, whichever manager has the call."""

from __future__ import annotations

from dataclasses import replace

from tests.support.machine import SESSION, Rig, only
from tests.unit.manager.test_natives_machine import CALL, claim, done, native, restarted

from parrot_manager.core import claims, commands, events
from parrot_manager.core.blocks.questions import Verdict
from parrot_manager.core.conditions import Condition, Predicate
from parrot_manager.core.model import CallState


def conditional() -> Rig:
    """A session with one native call that waits for its condition to be decided."""
    rig = Rig()
    rig.open()
    when = Condition("a", Predicate.EMPTY, "", (), negate=True)
    rig.submit([replace(native("a"), when=when)], ["a"])
    return rig


def decide(rig: Rig, *, holds: bool = True) -> None:
    """What the call's condition is about is read."""
    read = only(commands.ReadValues, rig.said)[-1]
    rig.tell(events.ValuesRead(SESSION, CALL, read.ask, (Verdict(holds),)))


def test_a_claim_is_not_lost_while_another_manager_looks_at_its_condition() -> None:
    rig = conditional()
    live = rig.machine.state.sessions[SESSION]
    assert not claims.admit_claim(live, rig.call(CALL), "w")
    decide(rig)
    claim(rig)
    again = restarted(rig)
    # It held when the call was offered: nothing is to be read anew.
    assert not only(commands.ReadValues, again.said)
    assert again.call(CALL).state is CallState.RUNNING
    claims.admit_renewal(again.machine.state.sessions[SESSION], again.call(CALL), "w")
    done(again)
    assert again.call(CALL).state is CallState.DONE


def test_what_was_offered_before_is_offered_by_another_manager_at_once() -> None:
    rig = conditional()
    decide(rig)
    claim(restarted(rig))


def test_a_condition_that_was_not_decided_is_decided_by_another_manager() -> None:
    again = restarted(conditional())
    live = again.machine.state.sessions[SESSION]
    assert not claims.admit_claim(live, again.call(CALL), "w")
    decide(again, holds=False)
    assert again.call(CALL).state is CallState.CANCELLED
