"""Text is released in whole characters, and nothing that may belong to a stop text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_engine.text.stream import TextStream

chars = st.text("ab漢😀\0 ", max_size=40)
stops = st.lists(st.text("ab漢😀", min_size=1, max_size=3), max_size=3).map(tuple)


def run(text: str, stop: tuple[str, ...], cut: int) -> tuple[list[str], bool]:
    stream = TextStream(stop)
    data = text.encode()
    pieces: list[str] = []
    for start in range(0, len(data), cut):
        piece, stopped = stream.push(data[start : start + cut])
        pieces.append(piece)
        if stopped:
            return pieces, True
    return [*pieces, stream.finish()], False


def first_stop(text: str, stop: tuple[str, ...]) -> int:
    return min((at for at in map(text.find, stop) if at >= 0), default=len(text))


@given(text=chars, stop=stops, cut=st.integers(1, 9))
def test_however_it_is_cut_the_text_ends_before_the_stop_text_that_is_complete_first(
    text: str, stop: tuple[str, ...], cut: int
) -> None:
    pieces, stopped = run(text, stop, cut)
    ends = [text.find(one) + len(one) for one in stop if one in text]
    seen = text[: min(ends)] if ends else text
    assert "".join(pieces) == seen[: first_stop(seen, stop)]
    assert stopped == bool(ends)


@given(text=chars, cut=st.integers(1, 9))
def test_without_stop_texts_all_text_comes_at_once_however_it_is_cut(text: str, cut: int) -> None:
    pieces, stopped = run(text, (), cut)
    assert "".join(pieces) == text
    assert pieces[-1] == ""
    assert not stopped


@given(text=chars, stop=stops, cut=st.integers(1, 9))
def test_no_piece_shows_part_of_the_stop_text_that_ended_the_output(
    text: str, stop: tuple[str, ...], cut: int
) -> None:
    pieces, stopped = run(text, stop, cut)
    shown = "".join(pieces)
    assert text.startswith(shown)
    if stopped:
        assert any(text[len(shown) :].startswith(one) for one in stop)


def test_half_a_character_at_the_end_is_dropped() -> None:
    stream = TextStream(())
    assert stream.push("a漢".encode()[:-1]) == ("a", False)
    assert stream.finish() == ""


def test_a_stop_text_that_ends_too_early_does_not_count_and_a_later_one_does() -> None:
    stream = TextStream(("ab",))
    assert stream.push(b"ab", may_stop=False) == ("a", False)
    assert stream.push(b"c") == ("b", False)
    assert stream.push(b"ab") == ("c", True)


@given(data=st.binary(max_size=24), cut=st.integers(1, 5))
def test_bytes_that_are_no_text_break_nothing_however_they_are_cut(data: bytes, cut: int) -> None:
    whole, parts = TextStream(()), TextStream(())
    pieces = [parts.push(data[start : start + cut])[0] for start in range(0, len(data), cut)]
    assert "".join(pieces) == whole.push(data)[0]
    assert data.decode(errors="replace").startswith("".join(pieces))


@given(stop=st.text("ab漢😀", min_size=1, max_size=4), after=st.binary(max_size=4))
def test_a_stop_text_in_pieces_of_single_bytes_is_found_at_its_last_byte(stop: str, after: bytes) -> None:
    stream = TextStream((stop,))
    *first, last = stop.encode()
    assert all(stream.push(bytes([byte])) == ("", False) for byte in first)
    assert stream.push(bytes([last]) + after) == ("", True)
    assert stream.finish() == ""
