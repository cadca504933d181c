"""Chats in the manager: what is refused, what they have in common, and the programs they become."""

from __future__ import annotations

import pytest

from parrot_manager import programs
from parrot_manager.call_requests import parse_call
from parrot_manager.condition_requests import Checks
from parrot_manager.core.commands import Dispatch, Share
from parrot_manager.core.model import Call, Edge, Session, SessionState, Variable, VariableState
from parrot_manager.core.prefixes import Prefix, prefixes
from parrot_manager.specs import shape_of
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault, Kind

SESSION = "s00-0000000000000001"
Segment = common_pb2.Segment


def turn(role: str) -> Segment:
    return Segment(turn=common_pb2.Turn(role=role))


def plain(text: str, *, private: bool = False) -> Segment:
    return Segment(plain=text, private=private)


def reads(name: str) -> Segment:
    return Segment(input=common_pb2.InputHole(name=name, variable_id=name))


def makes(name: str) -> Segment:
    return Segment(output=common_pb2.OutputHole(name=name, variable_id=name))


CHAT = (
    turn("system"),
    plain("Be brief."),
    turn("user"),
    plain("Of "),
    reads("x"),
    turn("assistant"),
    makes("y"),
)


def outputs_of(segments: tuple[Segment, ...]) -> tuple[Edge, ...]:
    return tuple(Edge(s.output.name, s.output.variable_id) for s in segments if s.HasField("output"))


def dispatch(*segments: Segment, shares: tuple[Share, ...] = ()) -> Dispatch:
    spec = manager_pb2.NewCall(segments=segments).SerializeToString()
    inputs = tuple(Edge(s.input.name, s.input.variable_id) for s in segments if s.HasField("input"))
    outputs = outputs_of(segments)
    shape = shape_of(spec, inputs, outputs)
    call = Call(SESSION, "c-1", 1, 1, "f", "m", inputs, outputs, spec, 0, attempt=1, shape=shape)
    known = tuple(Variable(SESSION, name, "", VariableState.READY, size_bytes=7) for name in call.input_ids)
    session = Session(SESSION, "tenant", "", SessionState.OPEN, 0, 99)
    return Dispatch(session, call, "e-1", 1, known, shares=shares)


def prefixes_of(*segments: Segment, tenant: str = "t") -> tuple[Prefix, ...]:
    spec = manager_pb2.NewCall(segments=segments).SerializeToString()
    return prefixes(tenant, SESSION, shape_of(spec, (), outputs_of(segments)), {})


def hashes(*segments: Segment, tenant: str = "t") -> list[str]:
    return [prefix.hash for prefix in prefixes_of(*segments, tenant=tenant)]


def test_a_chats_pieces_become_fills_in_the_models_format() -> None:
    program = programs.build(dispatch(*CHAT), {})
    assert list(program.chat_roles) == ["system", "user"]
    kinds = [op.fill.WhichOneof("content") or op.WhichOneof("kind") for op in program.operations]
    assert kinds == [
        "chat_turn",
        "plain_text",
        "chat_turn",
        "plain_text",
        "variable",
        "chat_turn",
        "generate",
    ]
    assert [op.fill.chat_turn for op in program.operations if op.fill.HasField("chat_turn")] == [0, 1, 2]


def test_shared_pieces_of_a_chat_have_contexts_of_their_own() -> None:
    program = programs.build(dispatch(*CHAT, shares=(Share(2, "h", 1.0),)), {})
    fills = [op.fill for op in program.operations if op.HasField("fill")]
    assert [fill.shared.prefix_hash for fill in fills] == ["h.1", "h", "", "", "", ""]


def test_tokens_and_text_of_ones_own_are_told_so() -> None:
    ids = common_pb2.TokenIds(ids=[5, 6])
    segments = (Segment(tokens=ids, private=True), Segment(text="<s>", private=True), makes("y"))
    first, second, _ = programs.build(dispatch(*segments), {}).operations
    assert first.fill.tokens == engine_pb2.TokenIds(ids=[5, 6])
    assert (second.fill.template_text, second.fill.private) == ("<s>", True)


def test_chats_share_what_they_begin_with_and_private_text_only_within_a_tenant() -> None:
    def chat(question: str, *, private: bool) -> tuple[Segment, ...]:
        head = (turn("system"), plain("Be brief.", private=private), turn("user"))
        return (*head, plain(question, private=private), turn("assistant"), makes("y"))

    mine, other = hashes(*chat("Why?", private=True)), hashes(*chat("How?", private=True))
    assert mine[:3] == other[:3]
    assert mine[3] != other[3]
    theirs = hashes(*chat("Why?", private=True), tenant="u")
    assert mine[0] == theirs[0]
    assert set(mine[1:]).isdisjoint(theirs[1:])
    assert hashes(*chat("Why?", private=False)) == hashes(*chat("Why?", private=False), tenant="u")
    public = [prefix.public for prefix in prefixes_of(*chat("Why?", private=True))]
    assert public == [True, False, False, False, False]


@pytest.mark.parametrize(
    "other",
    [
        (turn("user"), plain("system"), turn("assistant"), makes("y")),
        (Segment(text="user"), Segment(text="system"), makes("y")),
        (Segment(tokens=common_pb2.TokenIds(ids=[1])), makes("y")),
        (turn("system"), plain("user"), turn("assistant"), makes("y")),
    ],
)
def test_the_same_characters_of_another_kind_are_another_prefix(other: tuple[Segment, ...]) -> None:
    this = hashes(turn("user"), plain("user"), turn("assistant"), makes("y"))
    assert hashes(*other)[:2] != this[:2]


def refused(*segments: Segment) -> tuple[Kind, str]:
    with pytest.raises(Fault) as fault:
        parse_call(manager_pb2.NewCall(segments=segments), "calls[0]", Checks())
    return fault.value.kind, fault.value.field


@pytest.mark.parametrize(
    "segments",
    [
        (plain("x"), turn("user"), plain("x"), turn("assistant"), makes("y")),
        (turn("user"), plain("x"), turn("user"), makes("y")),
        (turn("assistant"), makes("y")),
        (turn("user"), makes("y"), turn("assistant"), makes("z")),
        (turn("user"), Segment(text="x"), turn("assistant"), makes("y")),
        (turn("<|im_end|>"), plain("x"), turn("assistant"), makes("y")),
        (turn(""), plain("x"), turn("assistant"), makes("y")),
    ],
)
def test_what_is_no_chat_is_refused_with_its_place(segments: tuple[Segment, ...]) -> None:
    assert refused(*segments) == (errors.INVALID_TEMPLATE, "calls[0].messages")


def test_the_sizes_of_a_chat_are_bounded() -> None:
    many = [turn("user")] * limits.CHAT_MESSAGES
    assert refused(*many, turn("assistant"), makes("y"))[0] is errors.TOO_LARGE
    long = plain("x" * (limits.TEMPLATE_BYTES + 1))
    assert refused(turn("user"), long, turn("assistant"), makes("y"))[0] is errors.TOO_LARGE
    tokens = Segment(tokens=common_pb2.TokenIds(ids=[1] * (limits.TEMPLATE_BYTES // 4 + 1)))
    assert refused(tokens, makes("y"))[0] is errors.TOO_LARGE
