"""`prefix_hash`: equal for what is equal, different for what is not, and never across tenants' values."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from parrot_manager.core.model import Variable, VariableState
from parrot_manager.core.prefixes import prefixes
from parrot_manager.core.shapes import InputPiece, OutputPiece, Piece, TextPiece


def text(name: str, tokens: int = 10) -> TextPiece:
    return TextPiece(name.encode(), tokens)


def ready(name: str, value: str, session: str = "s") -> Variable:
    return Variable(
        session, name, name, VariableState.READY, size_bytes=4 * len(value), value_digest=value.encode()
    )


def hashes(
    *pieces: Piece, tenant: str = "t", session: str = "s", values: dict[str, Variable] | None = None
) -> list[str]:
    return [found.hash for found in prefixes(tenant, session, pieces, values or {})]


def test_there_is_a_prefix_at_every_boundary_up_to_the_first_output() -> None:
    values = {"a": ready("a", "one"), "b": ready("b", "two")}
    shape = (text("x"), InputPiece("a"), text("y"), OutputPiece("o"), InputPiece("b"), OutputPiece("p"))
    found = prefixes("t", "s", shape, values)
    assert [prefix.pieces for prefix in found] == [1, 2, 3]
    assert [prefix.tokens for prefix in found] == [10, 13, 23]
    assert [prefix.public for prefix in found] == [True, False, False]


def test_the_same_text_is_shared_by_all_tenants_and_the_same_value_by_one() -> None:
    values = {"a": ready("a", "secret")}
    mine = hashes(text("x"), InputPiece("a"), values=values)
    theirs = hashes(text("x"), InputPiece("a"), tenant="u", values=values)
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    other_session = hashes(text("x"), InputPiece("b"), session="z", values={"b": ready("b", "secret", "z")})
    assert other_session == mine


def test_pending_variables_are_known_by_who_they_are_until_their_value_is() -> None:
    pending = Variable("s", "a", "a")
    first = hashes(InputPiece("a"), text("x"), values={"a": pending})
    assert first == hashes(
        InputPiece("a"), text("x"), values={"a": replace(pending, state=VariableState.STREAMING)}
    )
    assert first[0] != hashes(InputPiece("a"), session="z", values={"a": pending})[0]
    assert first[0] != hashes(InputPiece("a"), values={"a": ready("a", "v")})[0]
    shape = (text("x"), InputPiece("a"), text("y"))
    complete = [prefix.complete for prefix in prefixes("t", "s", shape, {"a": pending})]
    assert complete == [True, False, False]


def test_transforms_are_part_of_what_is_filled() -> None:
    values = {"a": ready("a", "v")}
    of = [hashes(InputPiece("a", names), values=values)[0] for names in ((), ("strip",), ("strip", "lower"))]
    assert len(set(of)) == 3


pieces = st.lists(
    st.one_of(
        st.sampled_from(["x", "y", "xy", ""]).map(text),
        st.sampled_from(["a", "b"]).map(InputPiece),
        st.sampled_from(["a", "b"]).map(lambda name: InputPiece(name, ("strip",))),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(st.lists(pieces, min_size=2, max_size=6))
def test_two_prompts_have_as_many_hashes_in_common_as_pieces(prompts: list[list[Piece]]) -> None:
    values = {"a": ready("a", "v"), "b": ready("b", "w")}
    for one, other in combinations(prompts, 2):
        same = 0
        while same < min(len(one), len(other)) and one[same] == other[same]:
            same += 1
        shared = set(hashes(*one, values=values)) & set(hashes(*other, values=values))
        assert len(shared) == same
