"""Where the time went of what failed, was skipped, waits for another attempt, or is open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.recorded import START_MS, Script, run
from tests.unit.runtime.test_critical_path import path_of

from parrot_runtime.critical_path import SessionTimes, Stage, analyse
from parrot_runtime.critical_path.records import BlockTimes, CallTimes, Lap, VariableTimes
from parrot_runtime.critical_path.replay import Replay

T = START_MS
END_MS = T + 2_000
DECODE = ("decode", "c-1", 2_000)
FAILED = CallTimes(
    "c-1",
    "f",
    T,
    state="failed",
    entered_ms=T,
    ready_ms=T,
    first_dispatched_ms=T,
    dispatched_ms=T,
    sent_ms=T,
    told_ms=END_MS,
    ended_ms=END_MS,
    laps=(Lap(Stage.DECODE, 2_000.0),),
)
WAITED = CallTimes("c-2", "g", T, state="failed", entered_ms=T, ended_ms=END_MS, inputs=("v1",))
AHEAD = replace(WAITED, first_dispatched_ms=T, dispatched_ms=T + 5, sent_ms=T + 5)
MADE = (VariableTimes("v1", "c-1", 0), VariableTimes("v2", "c-2", 0), VariableTimes("v0", "", 0))


def ended(*calls: CallTimes, **fields: object) -> SessionTimes:
    """A session that ended with its last call."""
    whole = SessionTimes("s", T, opened_ms=T, ended_ms=END_MS, calls=calls, variables=MADE)
    return replace(whole, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reader",
    [
        WAITED,
        AHEAD,
        replace(AHEAD, told_ms=T + 30, laps=(Lap(Stage.DYNAMIC_PREFILL, 20),)),
        replace(WAITED, state="cancelled", inputs=("v0", "v1")),
    ],
    ids=["waited", "sent ahead", "done ahead", "of two inputs"],
)
@pytest.mark.parametrize("number", [0, 9])
def test_a_producer_that_failed_is_on_the_path_of_those_it_took_along(reader: CallTimes, number: int) -> None:
    named = replace(reader, id=f"c-{number}")
    session = ended(FAILED, named)
    assert path_of(session) == [DECODE]
    # Even where nothing else leads there: the session went on, and was closed after it.
    last = replace(named, ended_ms=END_MS + 5)
    assert DECODE in path_of(ended(FAILED, last, ended_ms=END_MS + 5))


def test_a_failure_is_followed_through_all_that_waited_for_one_another() -> None:
    far = replace(WAITED, id="c-3", inputs=("v2",), ended_ms=END_MS + 5)
    assert DECODE in path_of(ended(FAILED, WAITED, far, ended_ms=END_MS + 5))


def test_a_block_that_never_unfolded_follows_who_failed() -> None:
    block = BlockTimes("b-1", "each", T, ended_ms=END_MS + 5, inputs=("v1",))
    assert DECODE in path_of(ended(FAILED, blocks=(block,), ended_ms=END_MS + 5))


def test_of_what_ended_at_one_time_the_path_is_of_what_ran() -> None:
    for number in (0, 9):
        assert path_of(ended(FAILED, replace(WAITED, id=f"c-{number}", inputs=("v0",)))) == [DECODE]


def test_a_call_that_failed_by_itself_does_not_follow_what_came_before() -> None:
    whole = VariableTimes("v1", "c-1", T + 500)
    open_input = VariableTimes("v2", "c-4", 0)
    done = replace(FAILED, ended_ms=T + 500, told_ms=T + 500, laps=(Lap(Stage.DECODE, 500),))
    session = ended(done, replace(AHEAD, id="c-3", inputs=("v1", "v2")), variables=(whole, open_input))
    assert path_of(session)[-1] == ("unexplained", "c-3", 1_995)


@pytest.mark.parametrize("name", ["c-0", "c-9"])
def test_a_batch_after_a_skipped_reader_came_after_what_ran(name: str) -> None:
    skipped = replace(WAITED, id=name, state="cancelled", inputs=("v0",))
    moved = {key: getattr(FAILED, key) + 2_100 for key in ("ready_ms", "entered_ms", "sent_ms", "told_ms")}
    later = replace(
        FAILED,
        id="c-5",
        state="done",
        accepted_ms=END_MS + 100,
        first_dispatched_ms=END_MS + 100,
        dispatched_ms=END_MS + 100,
        ended_ms=END_MS + 2_100,
        **moved,
    )
    assert path_of(ended(FAILED, skipped, later, ended_ms=END_MS + 2_100)) == [
        DECODE,
        ("client", "", 100),
        ("decode", "c-5", 2_000),
    ]


def test_an_open_session_that_is_idle_waits_for_its_client_until_now() -> None:
    session = replace(run([Script(takes={"decode": 40.0})]), ended_ms=0, settled_ms=0, closing_ms=0)
    assert path_of(session, T + 100) == [("decode", "c-0", 40), ("client", "", 60)]
    assert analyse(session, T + 100).total_ms == 100
    # The asker's clock may be behind.
    assert analyse(session, T + 10).total_ms == 40
    assert path_of(SessionTimes("s", T, opened_ms=T + 5), T + 50) == [
        ("admission", "", 5),
        ("client", "", 45),
    ]


def test_between_two_attempts_a_call_neither_runs_nor_is_committed() -> None:
    lost = replace(FAILED, first_dispatched_ms=T + 10, dispatched_ms=0)
    expected = [("queue", "c-1", 10), ("retries", "c-1", 1_990)]
    assert path_of(ended(lost)) == expected
    waits = ended(replace(lost, ended_ms=0, state="ready"), ended_ms=0)
    assert path_of(waits, END_MS) == expected


def test_only_what_is_on_the_path_is_left_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Stage | None] = []

    def end_ms(_: Replay, without: Stage | None = None) -> float:
        asked.append(without)
        return T

    monkeypatch.setattr(Replay, "end_ms", end_ms)
    analyse(run([Script(takes={"decode": 40.0, "publish": 5.0}), Script(takes={"queue": 2.0})]), T)
    assert sorted(map(str, asked)) == ["commit", "decode"]
