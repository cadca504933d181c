"""A session's log means the same wherever it is read: states once, text without gap, repeat or change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.bus import AGED_S
from parrot_runtime.values.session_fold import Added, Fold

TEXT = "The harbour opens at dawn, 港 and 🦜 and é. " * 3


def states(*told: tuple[str, str, str]) -> values_pb2.SessionStates:
    changes = [values_pb2.StateChange(kind=kind, id=name, state=state) for kind, name, state in told]
    return values_pb2.SessionStates(changes=changes)


def step(text: str, offset: int, attempt: int = 1, variable: str = "y") -> values_pb2.StepDeltas:
    delta = values_pb2.Delta(variable_id=variable, attempt=attempt, offset_bytes=offset, text=text)
    return values_pb2.StepDeltas(deltas=[delta])


def text_of(news: list[object]) -> str:
    return "".join(one.text for one in news if isinstance(one, Added))


def test_what_is_told_again_is_no_news() -> None:
    fold = Fold()
    assert len(fold.add_states(states(("call", "c-1", "running")))) == 1
    assert fold.add_states(states(("call", "c-1", "running"))) == []
    assert len(fold.add_states(states(("call", "c-1", "waiting"), ("call", "c-1", "done")))) == 2


def test_what_has_ended_stays_as_it_is() -> None:
    fold = Fold()
    for kind, end in (("call", "done"), ("variable", "ready"), ("block", "failed"), ("session", "closed")):
        fold.add_states(states((kind, "x", end)))
        assert fold.add_states(states((kind, "x", "running"), (kind, "x", "cancelled"))) == []
    assert fold.session_state == "closed"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.booleans()), max_size=12))
def test_text_is_told_once_however_attempts_overlap(pieces: list[tuple[int, int, bool]]) -> None:
    """A later attempt goes on anywhere within what an earlier one wrote, and writes the same there."""
    fold, told, attempt = Fold(), "", 1
    for back, length, is_retry in [*pieces, (0, len(TEXT), True)]:
        start = max(0, len(told) - back)
        attempt += is_retry
        piece = step(TEXT[start : start + length], len(TEXT[:start].encode()), attempt)
        told += text_of(list(fold.add_step(piece, 0)))
        assert told == TEXT[: max(len(told), start + length)]
    assert [one.text for one in fold.texts()] == [told] == [TEXT]


def test_what_follows_text_that_the_bus_did_not_take_reaches_nobody() -> None:
    fold = Fold()
    fold.add_step(step("abc", 0), 0)
    assert fold.add_step(step("ghi", 6), 0) == []
    assert text_of(list(fold.add_step(step("DEF", 3, attempt=2), 0))) == "DEF"
    assert fold.add_step(step("xyz", 6, attempt=1), 0) == []


def test_text_whose_beginning_has_aged_away_goes_on_but_begins_no_snapshot() -> None:
    fold = Fold()
    assert fold.add_step(step("def", 3), AGED_S + 1) == [Added("y", 3, "def")]
    assert fold.add_step(step("ghi", 6), 0) == [Added("y", 6, "ghi")]
    assert list(fold.texts()) == []


def test_text_of_a_variable_that_has_ended_is_no_news() -> None:
    fold = Fold()
    fold.add_step(step("abc", 0), 0)
    fold.add_states(states(("variable", "y", "failed")))
    assert fold.add_step(step("def", 3), 0) == []
    assert list(fold.texts()) == []
