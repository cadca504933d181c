"""What is learned of calls and engines: quickly enough, and not from a single bad figure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet import call, engine

from parrot_manager.core.estimates import ASSUMED_OUTPUT_TOKENS, Estimates, Lengths
from parrot_manager.core.model import Timings, Usage
from parrot_manager.core.paces import Line, Pace, fit
from parrot_manager.core.windows import Window


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0, 1))
def test_a_window_has_the_quantiles_of_its_last_numbers(numbers: list[float], share: float) -> None:
    window = Window(size=32)
    for number in numbers:
        window.add(number)
    last = sorted(numbers[-32:])
    assert window.quantile(share) == last[min(len(last) - 1, int(share * len(last)))]
    assert len(window) == len(last)


def test_a_function_never_seen_is_assumed_within_its_bound() -> None:
    estimates = Estimates()
    assert estimates.output(call(output=0)).q50 == ASSUMED_OUTPUT_TOKENS
    assert estimates.output(call(output=40)) == Lengths(40, 40)


def test_a_functions_lengths_are_learned_by_tenant_and_kept_within_the_bound() -> None:
    estimates = Estimates()
    for tokens in (20, 22, 24, 900, 21, 23):
        estimates.learn_output(call(tenant="a", name="f", output=1_000), tokens)
    assert estimates.output(call(tenant="a", name="f", output=1_000)).q50 == 23
    assert estimates.output(call(tenant="a", name="f", output=10)) == Lengths(10, 10)
    assert estimates.output(call(tenant="b", name="f", output=0)).q50 == ASSUMED_OUTPUT_TOKENS


def test_functions_unused_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parrot_manager.core.estimates.FUNCTIONS", 2)
    estimates = Estimates()
    for name in ("a", "b", "a", "c"):
        for _ in range(5):
            estimates.learn_output(call(name=name, output=0), 7)
    lengths = {name: estimates.output(call(name=name, output=0)).q50 for name in "abc"}
    assert lengths == {"a": 7, "b": ASSUMED_OUTPUT_TOKENS, "c": 7}


def test_the_line_of_steps_is_found_though_one_in_five_is_wrong() -> None:
    draw = random.Random(3)
    steps = [(weight, 20 + 0.004 * weight) for weight in (draw.uniform(100, 20_000) for _ in range(50))]
    steps = [(weight, ms * 9 if n % 5 == 0 else ms) for n, (weight, ms) in enumerate(steps)]
    line = fit(steps, Line())
    assert line.step_ms(1_000) == pytest.approx(24, rel=0.3)
    assert line.step_ms(15_000) == pytest.approx(80, rel=0.3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0.1, 1e4)), min_size=5, max_size=64))
def test_a_line_is_never_negative_and_never_falls(steps: list[tuple[float, float]]) -> None:
    line = fit(steps, Line())
    assert line.fixed_ms > 0
    assert line.per_token_ms >= 0


def test_steps_of_one_weight_say_how_long_and_not_how_steep() -> None:
    line = fit([(500.0, 33.0)] * 10, Line(15, 0.003))
    assert line.step_ms(500) == pytest.approx(33)
    assert line.fixed_ms / line.per_token_ms == pytest.approx(15 / 0.003)


def test_what_was_learned_of_light_steps_is_kept_under_load() -> None:
    pace = Pace()
    for weight in (*range(100, 4_000, 200), *[40_000 + n for n in range(300)]):
        pace.learn_step(weight, 12 + 0.0025 * weight)
    assert pace.line.fixed_ms == pytest.approx(12, rel=0.15)
    assert pace.line.per_token_ms == pytest.approx(0.0025, rel=0.15)


def test_an_engine_that_is_twice_as_slow_as_its_kind_is_known_as_that() -> None:
    estimates = Estimates()
    for weight in range(0, 8_000, 400):
        for name, factor in (("a", 1), ("b", 1), ("c", 2)):
            estimates.hear_step(engine(name), weight, factor * (10 + 0.002 * weight))
    slow, fast = (estimates.pace(engine(name)).line.step_ms(2_000) for name in ("c", "a"))
    assert slow / fast == pytest.approx(2, rel=0.2)
    estimates.forget_engine("c")
    assert estimates.pace(engine("c")).line.step_ms(2_000) == pytest.approx(fast, rel=0.2)


def test_decoding_that_calls_report_counts_until_engines_speak_for_themselves() -> None:
    estimates = Estimates()
    for _ in range(8):
        estimates.learn_call(engine("a"), 1_000, Usage(1_000, 0, 100), Timings(0, 100, 5_000))
    assert estimates.pace(engine("a")).line.step_ms(1_000) == pytest.approx(50, rel=0.1)
    assert estimates.pace(engine("a")).prefill_per_ms == pytest.approx(10)
    for _ in range(70):
        estimates.hear_step(engine("a"), 1_000, 20)
        estimates.learn_call(engine("a"), 1_000, Usage(1_000, 0, 100), Timings(0, 100, 5_000))
    assert estimates.pace(engine("a")).line.step_ms(1_000) == pytest.approx(20, rel=0.1)


def test_short_prefills_say_nothing_of_the_rate() -> None:
    pace = Pace()
    for _ in range(10):
        pace.learn_prefill(4, 50)
    assert pace.prefill_per_ms == Pace().prefill_per_ms


def test_a_single_prefill_says_more_than_a_guess() -> None:
    pace = Pace()
    pace.learn_prefill(1_000, 1_000.0)
    assert pace.prefill_per_ms == pytest.approx(1.0)
    # What waited for others in between is slower than the engine is.
    pace.learn_prefill(1_000, 4_000.0)
    assert pace.prefill_per_ms == pytest.approx(1.0)


def test_before_any_prefill_slow_steps_tell_of_slow_prefills() -> None:
    slow, fast = Pace(), Pace()
    for weight in range(100, 1_100, 100):
        slow.learn_step(weight, 60.0)
        fast.learn_step(weight, 5.0)
    assert slow.prefill_per_ms == pytest.approx(Pace().prefill_per_ms / 4, rel=0.1)
    assert fast.prefill_per_ms == Pace().prefill_per_ms
    slow.learn_prefill(100, 10.0)
    slow.learn_step(100, 60.0)
    assert slow.prefill_per_ms == pytest.approx(10.0)


def test_what_is_known_of_an_engines_prefills_counts_before_its_steps_do() -> None:
    estimates, one = Estimates(), engine("e")
    estimates.learn_call(one, 100.0, Usage(1_000, 0, 1), Timings(prefill_ms=2_000))
    assert estimates.pace(one).prefill_per_ms == pytest.approx(0.5)
    assert estimates.duration_ms(call(output=1), 1_000) >= 2_000


def test_a_prompt_that_was_computed_in_pieces_for_the_sake_of_others_tells_nothing_of_the_rate() -> None:
    estimates, one = Estimates(), engine("e")
    estimates.learn_call(one, 100.0, Usage(1_000, 0, 1), Timings(prefill_ms=100))
    for _ in range(20):
        estimates.learn_call(one, 100.0, Usage(1_000, 0, 1), Timings(prefill_ms=9_000), cut=True)
    assert estimates.pace(one).prefill_per_ms == pytest.approx(10)
