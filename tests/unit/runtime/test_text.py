"""Which text is text: one rule, refused at the door with field and offset."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault, clip
from parrot_runtime.text import check_name, check_text

scalar_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(scalar_text)
def test_every_unicode_scalar_text_is_text(text: str) -> None:
    assert check_text(text, "value") is text


@given(scalar_text, st.integers(0xD800, 0xDFFF), scalar_text)
def test_a_lone_surrogate_is_refused_with_field_and_offset(before: str, surrogate: int, after: str) -> None:
    with pytest.raises(Fault, match=f"at character {len(before)}") as caught:
        check_text(before + chr(surrogate) + after, "calls[0].prompt")
    assert caught.value.kind is errors.INVALID_TEXT
    assert caught.value.field == "calls[0].prompt"


@pytest.mark.parametrize("char", ["x", "漢", "\0", "😀"])
def test_a_limit_counts_bytes_of_utf8(char: str) -> None:
    size = len(char.encode())
    check_text(char * 10, "value", limit_bytes=10 * size)
    with pytest.raises(Fault, match=f"{10 * size:,} bytes") as caught:
        check_text(char * 10, "value", limit_bytes=10 * size - 1)
    assert caught.value.kind is errors.TOO_LARGE


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\x7f", "\u2028", "\ud83d"])
def test_a_name_holds_no_control_characters(name: str) -> None:
    with pytest.raises(Fault) as caught:
        check_name(name, "label")
    assert caught.value.kind is errors.INVALID_TEXT


def test_a_name_has_a_length_limit() -> None:
    check_name("é" * limits.NAME_CHARS, "label")
    with pytest.raises(Fault, match="characters"):
        check_name("é" * (limits.NAME_CHARS + 1), "label")


@given(st.text(), st.integers(8, 200))
def test_an_error_text_is_cut_to_valid_unicode_without_nul(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert "\0" not in clipped


def test_a_fault_survives_the_wire() -> None:
    fault = Fault(
        errors.PROMPT_TOO_LONG,
        "9,000 of 8,192",
        field="calls[1]",
        session_id="s00-0123456789abcdef",
        call_id="c-1",
        variable_id="v",
        cause_type="engine_lost",
        cause_call_id="c-0",
        retry_after_ms=5,
    )
    again = Fault.from_failure(fault.to_failure())
    assert vars(again) == vars(fault)


def test_every_kind_has_a_slug_of_its_own_and_no_users_mistake_is_a_500() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, errors.Kind)]
    assert len({kind.type for kind in kinds}) == len(kinds) == len(errors.KINDS)
    assert [kind.type for kind in kinds if kind.http == 500] == ["internal"]
    assert all(kind.grpc in grpc.StatusCode.__members__ for kind in kinds)
