"""Sessions that end with their calls: closed in the very step that ends the last, and not before."""

from __future__ import annotations

import pytest
from tests.support.machine import PLAIN, SESSION, TENANT, Rig, new, only

from parrot_manager.core import admission, events
from parrot_manager.core.commands import Persist
from parrot_manager.core.events import CallsCancelled
from parrot_manager.core.model import CallState, Failure, Ref, SessionState, Usage, Value
from parrot_runtime import errors
from parrot_runtime.errors import Fault


@pytest.fixture
def rig() -> Rig:
    """A machine with such a session and one engine."""
    rig = Rig()
    opened = admission.admit_session(
        PLAIN,
        rig.now_ms,
        session_id=SESSION,
        tenant=TENANT,
        label="",
        timeout_ms=0,
        ends_with_calls=True,
        key="key",
    )
    rig.tell(opened)
    rig.engine(capacity=9)
    return rig


def test_it_closes_with_its_last_call_and_is_stored_with_it(rig: Rig) -> None:
    assert rig.session().state is SessionState.OPEN
    rig.submit([new("f", outputs="a"), new("g", inputs="a", outputs="b")])
    rig.done(Ref(SESSION, "c-1", 1))
    assert rig.session().state is SessionState.OPEN
    (persist,) = only(Persist, rig.done(Ref(SESSION, "c-2", 1)))
    assert rig.session().state is SessionState.CLOSED
    assert persist.changes.session == rig.session()
    assert [call.id for call in persist.changes.calls] == ["c-2"]
    with pytest.raises(Fault) as refused:
        rig.admit([new("h", outputs="c")])
    assert refused.value.kind is errors.SESSION_ENDED


def test_it_closes_when_its_last_call_fails_or_is_cancelled(rig: Rig) -> None:
    rig.submit([new("f", outputs="a"), new("g", inputs="a", outputs="b"), new("h", outputs="c")])
    rig.failed(Ref(SESSION, "c-1", 1))
    assert rig.session().state is SessionState.OPEN
    rig.tell(CallsCancelled(SESSION, ("c-3",), subtree=False))
    assert rig.session().state is SessionState.CLOSED


def test_a_value_alone_does_not_end_it(rig: Rig) -> None:
    rig.tell(admission.admit_calls(rig.machine.state, TENANT, SESSION, [], [], now_ms=rig.now_ms))
    assert rig.session().state is SessionState.OPEN


def test_another_session_stays_open(rig: Rig) -> None:
    other = rig.open("s00-0000000000000002")
    rig.submit([new("f", outputs="a")], session_id=other)
    rig.done(Ref(other, "c-1", 1))
    assert rig.session(other).state is SessionState.OPEN


def test_why_an_output_ended_is_kept_with_it(rig: Rig) -> None:
    rig.submit([new("f", outputs="a")])
    rig.tell(events.AttemptDone(Ref(SESSION, "c-1", 1), (Value("a", b"made", "length"),)))
    assert rig.variable("a").finish_reason == "length"


def test_what_a_failed_attempt_used_is_kept_with_its_call(rig: Rig) -> None:
    rig.submit([new("f", outputs="a b")])
    used, why = Usage(7, 2, 5), Failure.of(errors.PROMPT_TOO_LONG, "it broke")
    rig.tell(events.AttemptFailed(Ref(SESSION, "c-1", 1), why, usage=used))
    # Of several outputs the bus is looked at first.
    rig.lost(Ref(SESSION, "c-1", 1))
    assert (rig.call("c-1").state, rig.call("c-1").usage) == (CallState.FAILED, used)
