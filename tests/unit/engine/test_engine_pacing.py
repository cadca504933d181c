"""How much of a prompt a step may take beside outputs that are to go on soon."""

from __future__ import annotations

import pytest

from parrot_engine.backends.pacing import LEAST_PREFILLED, StepPace

MOST = 512


def paced(decode_ms: float, token_ms: float, prefilled: int = 100) -> StepPace:
    """What steps cost that were seen."""
    pace = StepPace()
    for _ in range(5):
        pace.note(decode_ms / 1000, 0)
        pace.note((decode_ms + prefilled * token_ms) / 1000, prefilled)
    return pace


@pytest.mark.parametrize(
    ("limit_ms", "tokens"),
    [
        (120, 100),
        (70, 50),
        (1_000, MOST),
        # Not even a step that only decodes is as short as that.
        (10, LEAST_PREFILLED),
    ],
)
def test_as_much_is_prefilled_as_fits_into_the_step(limit_ms: float, tokens: int) -> None:
    assert paced(20, 1).prefilled(limit_ms, MOST) == pytest.approx(tokens, abs=1)


def test_a_budget_below_the_least_is_left_as_it_is() -> None:
    assert paced(20, 1).prefilled(1, LEAST_PREFILLED - 1) == LEAST_PREFILLED - 1


def test_before_anything_is_known_little_is_prefilled_and_then_it_is_known() -> None:
    pace = StepPace()
    assert pace.prefilled(120, MOST) == LEAST_PREFILLED
    pace.note(0.010, LEAST_PREFILLED)
    assert pace.prefilled(120, MOST) > LEAST_PREFILLED


def test_one_step_that_was_held_up_changes_little() -> None:
    pace = paced(20, 1)
    pace.note(5.0, 100)
    assert pace.prefilled(120, MOST) == pytest.approx(100, abs=1)


def test_a_token_of_many_and_one_of_a_small_piece_are_told_apart() -> None:
    pace = StepPace()
    pace.note(0.030, 5)
    assert (pace.token_ms, pace.piece_token_ms) == (0, 0)
    pace = paced(20, 0.5)
    assert pace.token_ms == pytest.approx(0.5)
    assert pace.piece_token_ms == 0
    for _ in range(5):
        pace.note(0.020 + 0.010, 10)
    assert pace.piece_token_ms == pytest.approx(1)
    assert pace.token_ms == pytest.approx(0.5)
    for _ in range(50):
        # Quicker than any that only decodes: noise, not a gain.
        pace.note(0.001, 10)
    assert pace.piece_token_ms == 0


def test_what_prefilled_next_to_nothing_says_nothing() -> None:
    pace = paced(20, 1)
    for _ in range(50):
        pace.note(0.5, 1)
    assert pace.prefilled(120, MOST) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("decode_s", "tokens"), [(0.020, MOST), (0.120, LEAST_PREFILLED), (0.150, LEAST_PREFILLED)]
)
def test_steps_faster_than_one_that_only_decodes_are_free(decode_s: float, tokens: int) -> None:
    pace = StepPace()
    pace.note(decode_s, 0)
    pace.note(decode_s - 0.010, 100)
    assert pace.prefilled(120, MOST) == tokens


def test_what_is_owed_is_paid_off_by_steps() -> None:
    pace = paced(20, 1)
    pace.owe(30)
    for _ in range(5):
        assert pace.owes
        pace.pay(0.25)
    pace.pay(0.25)
    assert not pace.owes


def test_nobody_owes_what_he_could_never_pay() -> None:
    pace = StepPace()
    # There has always been a prompt in the step.
    for _ in range(9):
        pace.note(0.1, 100)
        pace.owe(100)
        pace.pay(0.25)
    assert not pace.owes
