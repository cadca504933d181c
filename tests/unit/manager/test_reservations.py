"""What calls and blocks reserve of their tenant's quota before they begin, and what they are charged with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.machine import SESSION, TENANT, Rig, new

from parrot_manager import requests
from parrot_manager.core import admission
from parrot_manager.core.blocks.definitions import Map
from parrot_manager.core.blocks.instances import map_items
from parrot_manager.core.events import AttemptFailed, AttemptLost, CallsAccepted, TimerKind
from parrot_manager.core.model import Call, CallState, Failure, Usage
from parrot_manager.core.reservations import taken_by, used_tokens
from parrot_manager.core.shapes import UNBOUNDED_TOKENS
from parrot_manager.core.tenants import Movement
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors


def output(name: str, max_tokens: int) -> common_pb2.Segment:
    """A hole of an output."""
    sampling = common_pb2.Sampling(max_tokens=max_tokens)
    return common_pb2.Segment(output=common_pb2.OutputHole(name=name, variable_id=name, sampling=sampling))


def reads(name: str) -> common_pb2.Segment:
    """A hole of an input."""
    return common_pb2.Segment(input=common_pb2.InputHole(name=name, variable_id=name))


def text(tokens: int) -> common_pb2.Segment:
    """Text of about so many tokens."""
    return common_pb2.Segment(text="abcd" * tokens)


def accepted(
    rig: Rig, *calls: pb.NewCall, values: dict[str, str] | None = None, blocks: tuple[pb.NewBlock, ...] = ()
) -> CallsAccepted:
    """The batch as it is stored; nothing is stored."""
    given = [pb.NewValue(variable_id=name, value=value) for name, value in (values or {}).items()]
    found = requests.parse(pb.SubmitCallsRequest(calls=calls, values=given, blocks=blocks))
    return admission.admit_calls(
        rig.machine.state, TENANT, SESSION, found.calls, found.values, now_ms=1, blocks=found.blocks
    )


@pytest.fixture
def rig() -> Rig:
    """A machine with an open session."""
    made = Rig()
    made.open()
    return made


def test_a_call_reserves_its_text_its_inputs_and_the_most_it_may_make(rig: Rig) -> None:
    call = pb.NewCall(segments=[text(10), reads("given"), output("a", 40), output("b", 2)])
    batch = accepted(rig, call, values={"given": "x" * 21})
    assert batch.calls[0].reserved_tokens == 10 + 6 + 40 + 2
    assert taken_by(batch) == Movement(0, 1, 58, 58, 21 + len(batch.calls[0].spec))


def test_an_input_that_is_still_made_counts_as_what_it_may_become(rig: Rig) -> None:
    first = pb.NewCall(segments=[text(1), output("a", 40)])
    second = pb.NewCall(segments=[reads("a"), output("b", 5)])
    assert [call.reserved_tokens for call in accepted(rig, first, second).calls] == [41, 45]
    # The same where the producer was there before.
    rig.tell(accepted(rig, first))
    assert accepted(rig, second).calls[0].reserved_tokens == 45


def test_an_output_without_a_bound_reserves_a_fixed_part(rig: Rig) -> None:
    batch = accepted(rig, pb.NewCall(segments=[text(1), output("a", 0)]))
    assert batch.calls[0].reserved_tokens == 1 + UNBOUNDED_TOKENS


def test_a_function_of_the_client_reserves_its_place_and_no_tokens(rig: Rig) -> None:
    native = pb.Native(client=pb.NativeClient(timeout_ms=1_000))
    call = pb.NewCall(segments=[reads("given"), output("a", 0)], native=native)
    batch = accepted(rig, call, values={"given": "x" * 40})
    assert batch.calls[0].reserved_tokens == 0
    assert taken_by(batch).calls == 1


def test_a_map_reserves_all_its_items_may_need(rig: Rig) -> None:
    body = pb.NewCall(name="each", segments=[text(3), reads("item"), output("out", 7)])
    block = pb.NewBlock(
        map=pb.Map(
            list_variable_id="list",
            form=pb.ListForm(lines=True),
            item_variable_id="item",
            body=[body],
            collected=[pb.Collected(body_variable_id="out", variable_id="all")],
            max_items=5,
        )
    )
    made = accepted(rig, values={"list": "x" * 80}, blocks=(block,)).blocks[0]
    # The items together are as long as the list: four tokens each of twenty.
    assert (made.reserved_calls, made.reserved_tokens) == (5, 5 * (3 + 4 + 7))


def test_a_loop_reserves_all_rounds_of_tokens_and_the_calls_of_one(rig: Rig) -> None:
    body = pb.NewCall(name="round", segments=[text(2), reads("draft"), output("better", 8)])
    block = pb.NewBlock(
        loop=pb.Loop(
            body=[body],
            carried=[
                pb.Carried(body_variable_id="draft", initial_variable_id="first", next_variable_id="better")
            ],
            until=pb.Condition(variable_id="better", contains="done"),
            max_rounds=3,
            results=[pb.Result(body_variable_id="better", variable_id="last")],
        )
    )
    made = accepted(rig, values={"first": "x" * 40}, blocks=(block,)).blocks[0]
    assert (made.reserved_calls, made.reserved_tokens) == (1, 3 * (2 + 10 + 8))


def test_an_instance_that_is_cancelled_is_charged_with_its_own_share(rig: Rig) -> None:
    body = pb.NewCall(name="each", segments=[text(3), reads("item"), output("out", 7)])
    mapped = pb.Map(
        list_variable_id="list",
        form=pb.ListForm(lines=True),
        item_variable_id="item",
        body=[body],
        collected=[pb.Collected(body_variable_id="out", variable_id="all")],
    )
    made = accepted(rig, values={"list": "x"}, blocks=(pb.NewBlock(map=mapped),)).blocks[0]
    assert isinstance(made.plan, Map)
    (instance,) = map_items(made, made.plan, [b"x"], 1)
    cancelled = replace(instance.calls[0], state=CallState.CANCELLED, attempt=1, ended_ms=2)
    assert used_tokens(cancelled) == 3 + 7


def _upstream(why: Failure) -> Failure:
    return Failure(errors.UPSTREAM_FAILED.type, "", may_retry=why.may_retry, cause_type=why.type)


CALL = Call(SESSION, "c-1", 1, 1, "", "", (), (), b"", 1, attempt=1, ended_ms=2, reserved_tokens=50)
MISTAKE = Failure.of(errors.TRANSFORM_FAILED, "no")
LOST = Failure.of(errors.ENGINE_LOST, "gone")
LATE = Failure.of(errors.DEADLINE_EXCEEDED, "over")


@pytest.mark.parametrize(
    ("call", "used"),
    [
        (replace(CALL, state=CallState.DONE, usage=Usage(20, 10, 5)), 25),
        (replace(CALL, state=CallState.CANCELLED), 50),
        (replace(CALL, state=CallState.FAILED, failure=MISTAKE), 50),
        (replace(CALL, state=CallState.FAILED, failure=LATE), 50),
        (replace(CALL, state=CallState.FAILED, failure=LATE, usage=Usage(20, 0, 3)), 23),
        (replace(CALL, state=CallState.FAILED, failure=LATE, attempt=0), 0),
        (replace(CALL, state=CallState.FAILED, failure=LOST), 0),
        (replace(CALL, state=CallState.FAILED, failure=LOST, usage=Usage(20, 0, 3)), 0),
        (replace(CALL, state=CallState.FAILED, failure=_upstream(LATE)), 50),
        (replace(CALL, state=CallState.FAILED, failure=_upstream(LOST)), 0),
        (replace(CALL, state=CallState.CANCELLED, attempt=0), 0),
        (replace(CALL, state=CallState.CANCELLED, usage=Usage(20, 0, 3)), 23),
    ],
)
def test_a_call_is_charged_with_what_it_used_or_may_have(call: Call, used: int) -> None:
    assert used_tokens(call) == used


def test_a_session_whose_deadline_passes_pays_for_what_it_has_begun(rig: Rig) -> None:
    rig.engine()
    rig.submit([new("f", "", "out")])
    begun = rig.call("c-1")
    assert begun.attempt == 1
    rig.fire(TimerKind.SESSION_DEADLINE, SESSION)
    ended = replace(rig.call("c-1"), reserved_tokens=50)
    assert ended.failure is not None
    assert ended.failure.type == errors.DEADLINE_EXCEEDED.type
    assert used_tokens(ended) == 50


def test_what_an_attempt_used_is_not_what_the_next_one_is_charged_with(rig: Rig) -> None:
    rig.engine()
    rig.engine("e-2")
    rig.submit([new("f", "", "out")])
    first = rig.call("c-1").ref
    rig.tell(AttemptFailed(first, Failure.of(errors.UNAVAILABLE, "away"), usage=Usage(1, 0, 1)))
    rig.tell(AttemptLost(first))
    assert rig.call("c-1").attempt == 2
    rig.close()
    assert used_tokens(replace(rig.call("c-1"), reserved_tokens=50)) == 50
