"""Calls as programs: edges, shared contexts, inputs to come, and outputs that go on."""

from __future__ import annotations

import pytest

from parrot_manager import programs
from parrot_manager.core.commands import Dispatch, Share
from parrot_manager.core.model import Call, Edge, Session, SessionState, Streamed, Variable, VariableState
from parrot_manager.specs import pieces_of, shape_of, when_of
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

SESSION = "s00-0000000000000001"


def text(words: str) -> common_pb2.Segment:
    """A piece of template."""
    return common_pb2.Segment(text=words)


def reads(name: str, *transforms: str) -> common_pb2.Segment:
    """An input."""
    return common_pb2.Segment(input=common_pb2.InputHole(name=name, variable_id=name, transforms=transforms))


def makes(name: str, *transforms: str) -> common_pb2.Segment:
    """An output."""
    return common_pb2.Segment(
        output=common_pb2.OutputHole(name=name, variable_id=name, transforms=transforms)
    )


def edge(name: str, known: dict[str, str]) -> Edge:
    """A placeholder, and the variable it stands for."""
    return Edge(name, known.get(name, name))


def command(
    *segments: common_pb2.Segment,
    names: dict[str, str] | None = None,
    made: tuple[str, ...] = (),
    resume: dict[str, bytes] | None = None,
    pending: tuple[tuple[str, int], ...] = (),
    shares: tuple[Share, ...] = (),
) -> Dispatch:
    """A call of these pieces on its way; `names` are other variables for its placeholders."""
    spec = manager_pb2.NewCall(segments=segments).SerializeToString()
    known = names or {}
    inputs = tuple(edge(s.input.name, known) for s in segments if s.HasField("input"))
    outputs = tuple(edge(s.output.name, known) for s in segments if s.HasField("output"))
    shape = shape_of(spec, inputs, outputs)
    call = Call(SESSION, "c-1", 1, 1, "f", "m", inputs, outputs, spec, 0, attempt=2, shape=shape)
    return Dispatch(
        Session(SESSION, "tenant", "", SessionState.OPEN, 0, 99),
        call,
        "e-1",
        1,
        tuple(Variable(SESSION, name, "", VariableState.READY, size_bytes=7) for name in call.input_ids),
        pending=pending,
        resume=tuple(Streamed(name, data) for name, data in (resume or {}).items()),
        made=tuple(Variable(SESSION, name, "", VariableState.READY, "c-1", 5) for name in made),
        shares=shares,
    )


def operations(sent: Dispatch) -> list[engine_pb2.Operation]:
    """The program's operations."""
    return list(programs.build(sent, {}).operations)


def contexts(sent: Dispatch) -> list[tuple[str, str]]:
    """Each operation's context and its parent."""
    tasks = [op.fill if op.HasField("fill") else op.generate for op in operations(sent)]
    return [(task.context_id, task.parent_context_id) for task in tasks]


def test_a_call_is_one_context_of_fills_and_generates() -> None:
    sent = command(text("Say "), reads("a"), makes("b"), text("never read"))
    fill, value, task = operations(sent)
    assert fill.fill.template_text == "Say "
    assert (value.fill.variable.variable_id, value.fill.variable.size_bytes) == ("a", 7)
    assert not value.fill.variable.pending
    assert task.generate.output.variable_id == "b"
    assert contexts(sent) == [(f"{SESSION}/c-1/2", "")] * 3


def test_holes_stand_for_the_calls_edges_in_order_whatever_the_spec_names_them() -> None:
    sent = command(reads("item"), reads("item"), makes("out"), names={"item": "item-7", "out": "out-7"})
    first, second, task = operations(sent)
    assert [op.fill.variable.variable_id for op in (first, second)] == ["item-7", "item-7"]
    assert first.fill.variable.final_subject.endswith(".item-7")
    assert task.generate.output.variable_id == "out-7"


def test_a_shared_prefix_is_a_chain_of_contexts_the_calls_own_goes_on_from() -> None:
    shares = (Share(1, "h1", 1.5), Share(2, "h2", 3))
    sent = command(text("You are "), reads("role"), text(". Say "), makes("b"), shares=shares)
    own = f"{SESSION}/c-1/2"
    assert contexts(sent) == [("h1", ""), ("h2", "h1"), (own, "h2"), (own, "h2")]
    fills = [op.fill for op in operations(sent)[:3]]
    assert [fill.HasField("shared") for fill in fills] == [True, True, False]
    assert [(fill.shared.prefix_hash, fill.shared.steps_to_next_use) for fill in fills[:2]] == [
        ("h1", 1.5),
        ("h2", 3),
    ]


def test_a_share_of_several_pieces_has_one_context_a_piece() -> None:
    sent = command(text("x"), reads("a"), text("y"), makes("b"), shares=(Share(3, "h", 1),))
    assert contexts(sent) == [("h.1", ""), ("h.2", "h.1"), ("h", "h.2"), (f"{SESSION}/c-1/2", "h")]


def test_a_call_that_is_all_prefix_generates_in_a_fork_of_it() -> None:
    sent = command(text("x"), makes("b"), makes("c"), shares=(Share(1, "h", 1),))
    own = f"{SESSION}/c-1/2"
    assert contexts(sent) == [("h", ""), (own, "h"), (own, "h")]


def test_an_input_still_to_come_is_pending_and_no_shared_context_waits_for_it() -> None:
    shares = (Share(1, "h1", 1), Share(2, "h2", 1))
    sent = command(text("x"), reads("a"), makes("b"), pending=(("a", 40),), shares=shares)
    source = operations(sent)[1].fill.variable
    assert (source.pending, source.expected_tokens) == (True, 40)
    assert contexts(sent)[1] == (f"{SESSION}/c-1/2", "h1")


def test_an_output_goes_on_behind_what_was_streamed() -> None:
    sent = command(text("x"), makes("b"), makes("c"), resume={"c": "so f\u6f22".encode()})
    assert [op.generate.streamed_text for op in operations(sent)[1:]] == ["", "so f\u6f22"]


def test_an_output_whose_streamed_bytes_are_no_text_cannot_go_on() -> None:
    sent = command(text("x"), makes("b"), resume={"b": "\u6f22".encode()[:2]})
    with pytest.raises(Fault) as refused:
        operations(sent)
    assert refused.value.kind is errors.NOT_RESUMABLE


def test_an_output_that_was_made_is_filled_and_not_generated_again() -> None:
    sent = command(text("x"), makes("b"), text("y"), makes("c"), made=("b",))
    _, made, _, task = operations(sent)
    assert (made.fill.variable.variable_id, made.fill.variable.size_bytes) == ("b", 5)
    assert not made.fill.variable.pending
    assert task.generate.output.variable_id == "c"


def test_nothing_follows_the_last_output_that_is_still_to_be_made() -> None:
    sent = command(text("x"), makes("b"), text("y"), makes("c"), text("z"), made=("c",))
    assert [op.WhichOneof("kind") for op in operations(sent)] == ["fill", "generate"]


def test_what_follows_a_transformed_output_that_was_made_cannot_go_on() -> None:
    sent = command(text("x"), makes("b", "upper"), text("y"), makes("c"), made=("b",))
    with pytest.raises(Fault) as refused:
        operations(sent)
    assert refused.value.kind is errors.NOT_RESUMABLE


def test_a_spec_without_a_condition_has_none() -> None:
    call = manager_pb2.NewCall(segments=[text(""), text("x"), makes("b"), text("y")])
    spec = call.SerializeToString()
    assert when_of(spec) is None
    assert [segment.WhichOneof("piece") for segment in pieces_of(spec)] == ["text", "output"]
