"""What calls are run for, deduced from what readers want."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from parrot_manager.core.blocks.live import LiveBlocks
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.estimates import Estimates
from parrot_manager.core.graph import Graph
from parrot_manager.core.model import Call, Edge, Session, SessionState, Variable
from parrot_manager.core.objectives import DEFAULT_LEEWAY, deduce
from parrot_manager.core.shapes import InputPiece, OutputPiece, Shape, TextPiece

LATENCY, THROUGHPUT = ObjectiveKind.LATENCY, ObjectiveKind.THROUGHPUT
NOW_MS = 100_000


@dataclass
class Live:
    """A session in memory: calls are named after their outputs."""

    session: Session = field(
        default_factory=lambda: Session("s", "t", "", SessionState.OPEN, NOW_MS, NOW_MS + 3_600_000)
    )
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    graph: Graph = field(default_factory=Graph)
    unfinished: dict[str, None] = field(default_factory=dict)
    blocks: LiveBlocks = field(default_factory=LiveBlocks)

    def add(self, output: str, *inputs: str, tokens: int = 100, prompt: int = 100) -> None:
        """A call that makes one variable from others."""
        number = len(self.calls) + 1
        shape: Shape = (
            TextPiece(output.encode(), prompt),
            *map(InputPiece, inputs),
            OutputPiece(output, tokens),
        )
        call = Call(
            "s", output, number, number, f"f-{output}", "m", tuple(Edge(name, name) for name in inputs),
            (Edge(output, output),), b"", NOW_MS, shape=shape,
        )  # fmt: skip
        self.calls[output] = call
        self.unfinished[output] = None
        self.variables[output] = Variable("s", output, output, producer_call_id=output)
        self.graph.add(output, call)

    def want(self, name: str, kind: ObjectiveKind, deadline_ms: int = 0) -> None:
        """Somebody reads a variable."""
        self.variables[name] = replace(self.variables[name], criteria=Criteria(kind, deadline_ms))


def map_reduce(parts: int) -> Live:
    live = Live()
    for part in range(parts):
        live.add(f"part{part}")
    live.add("final", *(f"part{part}" for part in range(parts)))
    return live


def kinds(live: Live) -> dict[str, ObjectiveKind]:
    return {name: found.kind for name, found in deduce(live, Estimates(), NOW_MS).items()}


def test_calls_side_by_side_ahead_of_a_latency_output_are_one_group() -> None:
    found = deduce(map_reduce(24), Estimates(), NOW_MS)
    assert {found[f"part{n}"].group for n in range(24)} == {"final-1"}
    assert found["part0"].reason == "latency: group of 24 ahead of final (f-final)"
    assert found["part0"].members == 24
    assert (found["final"].group, found["final"].reason) == ("", "latency of 'final'")
    assert len({found[f"part{n}"].latest_finish_ms for n in range(24)}) == 1


def test_a_throughput_output_makes_all_its_ancestors_throughput_without_groups() -> None:
    live = map_reduce(5)
    live.want("final", THROUGHPUT)
    found = deduce(live, Estimates(), NOW_MS)
    assert {one.kind for one in found.values()} == {THROUGHPUT}
    assert {one.group for one in found.values()} == {""}


def test_a_call_that_two_outputs_need_is_as_urgent_as_the_stricter_one() -> None:
    live = Live()
    live.add("shared")
    live.add("batch", "shared")
    live.add("chat", "shared")
    live.want("batch", THROUGHPUT)
    live.want("chat", LATENCY)
    assert kinds(live) == {"shared": LATENCY, "batch": THROUGHPUT, "chat": LATENCY}


def test_a_later_stricter_reader_upgrades_what_has_not_run() -> None:
    live = map_reduce(3)
    live.want("final", THROUGHPUT)
    assert set(kinds(live).values()) == {THROUGHPUT}
    live.want("final", LATENCY)
    del live.unfinished["part0"]
    assert kinds(live) == {"part1": LATENCY, "part2": LATENCY, "final": LATENCY}


def test_the_session_says_what_outputs_are_for_that_nobody_speaks_of() -> None:
    live = map_reduce(3)
    live.session = replace(live.session, criteria=Criteria(THROUGHPUT))
    assert set(kinds(live).values()) == {THROUGHPUT}


def test_a_chain_is_latency_step_by_step_and_each_step_starts_before_the_next() -> None:
    live = Live()
    live.add("a")
    live.add("b", "a")
    live.add("c", "b")
    found = deduce(live, Estimates(), NOW_MS)
    assert [found[name].stage for name in "abc"] == [2, 1, 0]
    assert found["a"].reason == "latency: 2 stages ahead of c (f-c)"
    assert [found[name].group for name in "abc"] == ["", "", ""]
    assert found["a"].latest_finish_ms == found["b"].latest_start_ms
    assert found["b"].latest_finish_ms == found["c"].latest_start_ms
    assert found["a"].remaining_ms > found["b"].remaining_ms > found["c"].remaining_ms


def test_an_application_has_its_leeway_and_no_more() -> None:
    live = Live()
    live.add("a")
    live.add("b", "a")
    found = deduce(live, Estimates(), NOW_MS)
    ideal_ms = found["b"].ideal_ms
    leeway_ms = found["b"].latest_finish_ms - NOW_MS
    assert abs(leeway_ms - DEFAULT_LEEWAY.latency_stretch * ideal_ms) <= DEFAULT_LEEWAY.latency_stretch
    assert ideal_ms == found["a"].remaining_ms


def test_a_deadline_counts_back_to_when_each_call_must_start_and_never_exceeds_the_sessions() -> None:
    live = Live()
    live.add("a")
    live.add("b", "a")
    live.want("b", ObjectiveKind.DEADLINE, NOW_MS + 60_000)
    found = deduce(live, Estimates(), NOW_MS)
    assert found["b"].latest_finish_ms == NOW_MS + 60_000
    assert found["a"].latest_finish_ms == found["b"].latest_start_ms < NOW_MS + 60_000
    live.want("b", ObjectiveKind.DEADLINE, NOW_MS + 10**9)
    assert deduce(live, Estimates(), NOW_MS)["b"].latest_finish_ms == live.session.deadline_ms


def test_time_to_first_token_leaves_out_what_is_decoded_after_it() -> None:
    live = Live()
    live.add("a", tokens=1_000)
    live.want("a", ObjectiveKind.TTFT)
    first = deduce(live, Estimates(), NOW_MS)["a"]
    live.want("a", LATENCY)
    whole = deduce(live, Estimates(), NOW_MS)["a"]
    assert first.kind is ObjectiveKind.TTFT
    assert first.latest_start_ms < whole.latest_start_ms


def test_the_end_does_not_come_nearer_as_calls_are_done() -> None:
    live = map_reduce(4)
    before = deduce(live, Estimates(), NOW_MS)
    for name, objective in before.items():
        live.calls[name] = replace(live.calls[name], objective=objective)
    for part in range(4):
        del live.unfinished[f"part{part}"]
    after = deduce(live, Estimates(), NOW_MS + 5_000)
    assert after["final"].latest_finish_ms == before["final"].latest_finish_ms
    assert after["final"].ideal_ms == before["final"].ideal_ms


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=25), st.randoms())
def test_of_any_graph_producers_must_end_before_their_consumers_start(
    graph: Sequence[Sequence[int]], draw: object
) -> None:
    live = Live()
    for number, inputs in enumerate(graph):
        live.add(
            f"v{number}", *(f"v{n}" for n in dict.fromkeys(inputs) if n < number), tokens=10 * number + 1
        )
    found = deduce(live, Estimates(), NOW_MS)
    assert set(found) == set(live.unfinished)
    for name, call in live.calls.items():
        for producer in call.input_ids:
            assert found[producer].latest_finish_ms <= found[name].latest_start_ms + 1
            assert found[producer].remaining_ms >= found[name].remaining_ms
    for one in found.values():
        if one.group:
            same = [other for other in found.values() if other.group == one.group]
            assert len(same) == one.members > 1
            assert len({other.latest_finish_ms for other in same}) == 1


def test_the_work_grows_no_faster_than_the_graph() -> None:
    """Ten times the calls take about ten times as long; at most thirty, on a busy machine."""

    def took(calls: int) -> float:
        live = map_reduce(calls)
        times = []
        for _ in range(3):
            begun = time.process_time()
            deduce(live, Estimates(), NOW_MS)
            times.append(time.process_time() - begun)
        return min(times)

    assert took(5_000) <= 30 * took(500)
