"""Ids: single tokens of a bus subject that carry their shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_runtime import ids
from parrot_runtime.values.subjects import SessionSubjects


def test_a_session_id_carries_a_shard_and_is_an_id() -> None:
    made = [ids.new_session_id() for _ in range(500)]
    assert len(set(made)) == len(made)
    assert all(ids.is_id(one) and ids.is_session_id(one) for one in made)
    assert {ids.shard_of(one) for one in made} == set(range(ids.SHARDS))


@given(st.text())
def test_what_is_an_id_is_one_token_of_a_subject(text: str) -> None:
    if ids.is_id(text):
        assert not set(text) & set(".*> \t\r\n\0")
        assert text.isascii()


@pytest.mark.parametrize(
    "text", ["", "s", "sff-0123456789abcdef", "s00-0123456789ABCDEF", "s00-0\n", "x" * 65]
)
def test_what_is_no_session_id_has_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="not a session id"):
        ids.shard_of(text)


def test_a_sessions_subjects_do_not_overlap_with_anothers() -> None:
    one, other = SessionSubjects("a", ids.new_session_id()), SessionSubjects("a", ids.new_session_id())
    assert one.delta != other.delta
    assert not one.final("v").startswith(other.finals.removesuffix(">"))
    assert one.final("v").startswith(one.finals.removesuffix(">"))
