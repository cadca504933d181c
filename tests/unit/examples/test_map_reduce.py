"""The example cuts any text without losing a word of it."""

from __future__ import annotations

import pytest
from examples import map_reduce_summary as example
from hypothesis import given
from hypothesis import strategies as st

import parrot as P


def words(text: str) -> str:
    return "".join(text.split())


@given(st.text(st.sampled_from("ab \n"), max_size=600), st.integers(1, 20))
def test_parts_hold_the_whole_text_and_are_small_enough(text: str, chunk_tokens: int) -> None:
    chunks = example.split(text, chunk_tokens)
    assert words("".join(chunks)) == words(text)
    assert all(0 < len(chunk) <= chunk_tokens * example.CHARS_PER_TOKEN for chunk in chunks)


@pytest.mark.parametrize("text", ["x" * 10_000, "\n\n" * 5_000, "one two " * 2_000])
def test_texts_without_paragraphs_are_cut_too(text: str) -> None:
    assert words("".join(example.split(text, 100))) == words(text)


def test_paragraphs_stay_whole_where_they_fit() -> None:
    text = "\n\n".join([f"paragraph {number} " + "word " * 10 for number in range(50)])
    assert all(chunk.startswith("paragraph") for chunk in example.split(text, 40))


def test_the_default_document_is_long_and_of_one_piece() -> None:
    document = example.default_document()
    assert len(document) > 4.3 * 20_000
    assert document.startswith("Objects, values and types")


@pytest.mark.parametrize("count", [1, 2, 300])
def test_the_last_call_reads_every_summary(count: int) -> None:
    function = example.reduce_function(count, P.SamplingConfig())
    assert all(f"{{{{summary_{number}}}}}" in function.template for number in range(1, count + 1))
    assert function.template.endswith("{{summary}}")
