"""What rounds come to: medians, and ratios between what ran in the same round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_bench.figures import Round, best_baseline, by_system, gain, metrics, percentile, summary
from parrot_bench.graphs import Application, Call, Kind, Text, Workload
from parrot_bench.systems.base import CallOutcome, Outcome


def application(name: str, kind: Kind = "application", deadline_ms: float | None = None) -> Application:
    return Application(name, (Call("x", (Text("t"),), 3),), ("x",), kind=kind, deadline_ms=deadline_ms)


ONE = Workload("w", (application("a"),))


def took(system: str, number: int, e2e_ms: float, error: str = "") -> Round:
    return Round(system, number, 0, ONE, {"a": Outcome("a", e2e_ms, error=error)}, e2e_ms)


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([30, 10, 20], 0.5) == 20
    assert percentile([10, 20], 0.95) == pytest.approx(19.5)
    assert percentile([7], 0.95) == 7
    assert percentile([1, 2], 1.0) == 2
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
def test_a_percentile_is_within_its_values_and_grows_with_its_share(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert min(values) <= found <= max(values) or found == pytest.approx(max(values))
    assert percentile(values, 0) <= found or found == pytest.approx(min(values))


def test_the_mean_over_applications_leaves_chats_and_background_out() -> None:
    workload = Workload(
        "w",
        (application("a"), application("b"), application("c", "chat"), application("d", "background")),
    )
    outcomes = {
        "a": Outcome("a", 100.0),
        "b": Outcome("b", 300.0),
        "c": Outcome("c", 7.0, (CallOutcome("x", 2.0, 5.0, 25.0, 10, 3, 4),)),
        "d": Outcome("d", 9000.0),
    }
    found = metrics(Round("parrot", 0, 0, workload, outcomes, 1500.0))
    assert found["e2e_ms"] == 200
    assert found["background_e2e_ms"] == 9000
    assert found["background_done_per_s"] == pytest.approx(1 / 1.5)
    assert found["chat_ttft_p50_ms"] == found["chat_ttft_p95_ms"] == 3
    assert found["chat_tpot_p95_ms"] == 10
    assert found["goodput_per_s"] == 2
    assert found["cached_share"] == 0.4


def test_background_that_was_cut_off_counts_for_nothing() -> None:
    workload = Workload("w", (application("a"), application("d", "background")))
    found = metrics(Round("parrot", 0, 0, workload, {"a": Outcome("a", 100.0)}, 100.0))
    assert found == {"goodput_per_s": 10, "e2e_ms": 100, "background_done_per_s": 0}


def test_what_is_late_or_failed_is_no_goodput() -> None:
    names = ("in_time", "late", "failed", "without_deadline")
    deadlines = (100.0, 100.0, 100.0, None)
    workload = Workload(
        "w", tuple(application(n, deadline_ms=d) for n, d in zip(names, deadlines, strict=True))
    )
    times = {"in_time": 100.0, "late": 100.1, "failed": 1.0, "without_deadline": 1e6}
    outcomes = {n: Outcome(n, t, error="broke" if n == "failed" else "") for n, t in times.items()}
    found = metrics(Round("parrot", 0, 0, workload, outcomes, 1000.0))
    assert found == {"goodput_per_s": 2}  # Times of a round that failed are not shown.


def test_a_ratio_is_taken_within_rounds_and_not_between_them() -> None:
    # The second round was slow for everybody: between rounds the ratio would be 2.
    rounds = [took("parrot", 0, 100), took("client", 0, 110), took("parrot", 1, 400), took("client", 1, 440)]
    ratio = gain(rounds, "e2e_ms", "client")
    assert ratio is not None
    assert (ratio.least, ratio.most) == pytest.approx((1.1, 1.1))


def test_a_round_that_failed_on_either_side_is_left_out_of_the_ratio() -> None:
    rounds = [took("parrot", 0, 100, "broke"), took("client", 0, 900), took("parrot", 1, 100)]
    assert gain(rounds, "e2e_ms", "client") is None
    rounds.append(took("client", 1, 50))
    ratio = gain(rounds, "e2e_ms", "client")
    assert ratio is not None
    assert ratio.median == 0.5


def test_more_goodput_is_better_and_less_time_is() -> None:
    rounds = [took("parrot", 0, 100), took("client", 0, 200), took("langchain", 0, 150)]
    found = summary(rounds)
    assert best_baseline(rounds, "e2e_ms") == best_baseline(rounds, "goodput_per_s") == "langchain"
    assert found["e2e_ratio_client"] == 2
    assert found["e2e_ratio_best"] == 1.5
    assert found["goodput_ratio"] == pytest.approx(1.5)
    assert found["e2e_ms"] == 100


@pytest.mark.parametrize(
    ("ours", "theirs", "ratio"),
    [("", "", 1), ("broke", "", 0), ("", "broke", None), ("broke", "broke", None)],
)
def test_goodput_of_nothing_is_nothing_and_what_is_over_nothing_is_left_out(
    ours: str, theirs: str, ratio: float | None
) -> None:
    rounds = [took("parrot", 0, 100, ours), took("client", 0, 100, theirs)]
    assert summary(rounds).get("goodput_ratio") == ratio
    rounds += [took("parrot", 1, 100), took("client", 1, 100)]
    found = gain(rounds, "goodput_per_s", "client")
    assert found is not None
    assert found.rounds == (1 if ratio is None else 2)
    assert found.least == (1 if ratio is None else ratio)


def test_metrics_have_the_names_that_they_are_asked_for_by() -> None:
    systems = (
        "parrot",
        "client-round-robin",
        "client-prefix-aware",
        "client-priority",
        "parrot-without-grouping",
    )
    found = summary([took(system, 0, 100) for system in systems])
    assert set(found) == {
        "e2e_ms",
        "goodput_per_s",
        "goodput_ratio",
        "e2e_ratio_best",
        "e2e_ratio_round_robin",
        "e2e_ratio_prefix_aware",
        "e2e_ratio_client_priority",
        "e2e_ratio_parrot_without_grouping",
    }


def test_less_of_parrot_is_no_baseline() -> None:
    rounds = [took("parrot", 0, 100), took("parrot-as-request_fifo", 0, 50)]
    assert best_baseline(rounds, "e2e_ms") is None
    assert "e2e_ratio_best" not in summary(rounds)
    assert summary(rounds)["e2e_ratio_parrot_as_request_fifo"] == 0.5


def test_chats_are_compared_with_the_baseline_that_is_best_at_each() -> None:
    workload = Workload("mixed", (application("c", "chat"),))

    def chat(system: str, first_ms: float, end_ms: float) -> Round:
        call = CallOutcome("x", 0, first_ms, end_ms, 3, 3)
        return Round(system, 0, 0, workload, {"c": Outcome("c", end_ms, (call,))}, end_ms)

    found = summary([chat("parrot", 10, 30), chat("client", 20, 120), chat("client-priority", 40, 50)])
    assert found["chat_ttft_p50_ratio"] == found["chat_ttft_p95_ratio"] == 2
    assert found["chat_tpot_p95_ratio"] == 0.5


def test_a_percentile_of_chats_is_that_of_all_rounds_chats_together() -> None:
    workload = Workload("mixed", tuple(application(f"c{n}", "chat") for n in range(10)))

    def chats(system: str, number: int, slow: int, slow_ms: float) -> Round:
        """Ten chats, some of which are slow."""
        firsts = [slow_ms] * slow + [10.0] * (10 - slow)
        outcomes = {
            f"c{n}": Outcome(f"c{n}", 99.0, (CallOutcome("x", 0, first, first + 9, 3, 3),))
            for n, first in enumerate(firsts)
        }
        return Round(system, number, 0, workload, outcomes, 99.0)

    # One slow chat of 30 is not among the 95 of 100; of the 10 of its round it is.
    rounds = [chats("parrot", number, int(number == 1), 1000) for number in range(3)]
    rounds += [chats("client", number, 1, 40) for number in range(3)]
    ours = by_system(rounds)["parrot"]["chat_ttft_p95_ms"]
    assert (ours.median, ours.least, ours.rounds, ours.chats) == (10, 10, 3, 30)
    assert ours.most > 500
    # Most chats of most rounds are slow, but not most of all chats.
    uneven = by_system([chats("parrot", number, slow, 1000) for number, slow in enumerate((6, 6, 0))])
    assert uneven["parrot"]["chat_ttft_p50_ms"].median == 10
    ratio = gain(rounds, "chat_ttft_p95_ms", "client")
    assert ratio is not None
    assert (ratio.median, ratio.rounds, ratio.chats) == (4, 3, 30)
    assert ratio.least < 1


def test_nothing_measured_comes_to_nothing() -> None:
    assert summary([]) == {}
    assert by_system([]) == {}
