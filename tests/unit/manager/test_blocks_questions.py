"""Lists in texts, texts from lists, and the ids of what a block adds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_manager.core.blocks.definitions import ListForm, Listing
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.names import instance_variable, is_reserved, suffix_of
from parrot_manager.core.blocks.questions import (
    Answer,
    Collection,
    Copy,
    Holds,
    Items,
    Texts,
    TooMany,
    Unanswerable,
    Verdict,
    answer,
)
from parrot_manager.core.conditions import Condition, Predicate
from parrot_runtime import limits
from parrot_runtime.ids import is_id

JSON = Listing(ListForm.JSON_ARRAY)
LINES = Listing(ListForm.LINES)


def items(text: str, listing: Listing, at_most: int = 10) -> Answer:
    """What is answered about a list."""
    return answer(Items("v", listing, at_most), {"v": text.encode()})


def texts(*words: str) -> Texts:
    """An answer of words."""
    return Texts(tuple(word.encode() for word in words))


@pytest.mark.parametrize(
    ("text", "listing", "expected"),
    [
        ('["a", 1, null, {"k": "é"}]', JSON, texts("a", "1", "null", '{"k":"é"}')),
        ("[]", JSON, texts()),
        (" one \r\n\n two\n   \nthree", LINES, texts("one", "two", "three")),
        ("", LINES, texts()),
        ("a; b ;; c;", Listing(ListForm.SEPARATED, ";"), texts("a", "b", "c")),
        ("a--b---c", Listing(ListForm.SEPARATED, "--"), texts("a", "b", "-c")),
    ],
)
def test_a_list_is_taken_apart(text: str, listing: Listing, expected: Texts) -> None:
    assert items(text, listing) == expected


@pytest.mark.parametrize("listing", [JSON, LINES, Listing(ListForm.SEPARATED, "\n")])
def test_a_list_that_is_too_long_is_not_cut(listing: Listing) -> None:
    words = [str(n) for n in range(11)]
    text = json.dumps(words) if listing is JSON else "\n".join(words)
    assert items(text, listing) == TooMany()
    assert items(text, listing, at_most=11) == texts(*words)


@pytest.mark.parametrize(
    ("text", "why"), [("{}", "no JSON array"), ("a, b", "no JSON"), ('["\\ud800"]', "half a character")]
)
def test_what_is_no_list_is_said_without_its_text(text: str, why: str) -> None:
    answered = items(text, JSON)
    assert isinstance(answered, Unanswerable)
    assert why in answered.why


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_collected_can_be_taken_apart_again(words: list[str]) -> None:
    values = {str(n): word.encode() for n, word in enumerate(words)}
    whole = answer(Collection(tuple(values), None), values)
    assert isinstance(whole, Texts)
    assert answer(Items("v", JSON, len(words)), {"v": whole.data[0]}) == texts(*words)


def test_texts_are_joined_or_copied_as_they_are() -> None:
    values = {"a": b"x\0", "b": "漢".encode()}
    assert answer(Collection(("a", "b"), " | "), values) == texts("x\0 | 漢")
    assert answer(Copy("b"), values) == texts("漢")
    condition = Condition("a", Predicate.CONTAINS, "\0")
    assert answer(Holds(condition), values) == Verdict(holds=True)


def test_a_collection_beyond_a_values_size_is_no_answer() -> None:
    half = b"x" * (limits.VALUE_BYTES // 2)
    assert isinstance(answer(Collection(("a", "b"), "--"), {"a": half, "b": half}), Unanswerable)
    quotes = b'"' * (limits.VALUE_BYTES // 2)
    assert isinstance(answer(Collection(("a",), None), {"a": quotes}), Unanswerable)
    separated = Collection(("a", "a", "a"), "x" * limits.VALUE_BYTES)
    assert isinstance(answer(separated, {"a": b""}), Unanswerable)


NAMES = st.text("abcdefXYZ019_-", min_size=1, max_size=64)
BLOCK = Block("s", "b-2147483647", 2147483647, 1, "", "map", (), (), b"", 0)


@given(NAMES, NAMES, st.integers(0, 1000), st.integers(0, 1000))
def test_ids_of_instances_are_ids_and_differ(one: str, two: str, first: int, second: int) -> None:
    made = instance_variable(BLOCK, first, one)
    assert is_id(made)
    assert is_reserved(made)
    same = instance_variable(BLOCK, second, two) == made
    assert same == ((one, first) == (two, second))


def test_short_names_stay_readable() -> None:
    assert suffix_of("summary") == "summary"
    assert not is_reserved("b-side")
    assert not is_reserved("c-1-x")
