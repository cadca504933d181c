"""The checks of a batch name the culprits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_manager.core.graph import Graph, check_inputs, check_outputs, topological_order
from parrot_manager.core.model import Edge
from parrot_manager.core.submissions import NewCall
from parrot_runtime import errors
from parrot_runtime.errors import Fault


def new(name: str, inputs: str = "", outputs: str = "") -> NewCall:
    """A call whose placeholders are its variables in capitals."""
    return NewCall(name, "", edges(inputs), edges(outputs), b"")


def edges(names: str) -> tuple[Edge, ...]:
    return tuple(Edge(name.upper(), name) for name in names.split())


def producers(batch: list[NewCall]) -> dict[str, int]:
    return check_outputs(batch, [], {})


def test_a_graph_knows_producers_and_consumers() -> None:
    graph = Graph()
    graph.add("c-1", new("one", "", "a"))
    graph.add("c-2", new("two", "a a b", "c"))
    assert graph.get_producer("a") == "c-1"
    assert graph.get_producer("b") == ""
    assert graph.get_consumers("a") == ("c-2",)


def test_two_producers_in_a_batch_are_refused_with_both_named() -> None:
    with pytest.raises(Fault) as refused:
        producers([new("one", "", "a"), new("two", "", "a")])
    assert refused.value.kind is errors.DUPLICATE_PRODUCER
    assert refused.value.field == "calls[1].A"
    assert refused.value.variable_id == "a"
    assert "calls[0] (one)" in refused.value.message


def test_one_call_that_produces_a_variable_twice_is_refused() -> None:
    with pytest.raises(Fault) as refused:
        producers([new("one", "", "a a")])
    assert refused.value.kind is errors.DUPLICATE_PRODUCER


@pytest.mark.parametrize("taken", [{"a": "call c-3"}, {"a": "a client"}])
def test_a_variable_the_session_has_is_not_produced_again(taken: dict[str, str]) -> None:
    with pytest.raises(Fault) as refused:
        check_outputs([new("one", "", "a")], [], taken)
    assert taken["a"] in refused.value.message


def test_a_variable_with_a_value_in_the_batch_has_no_producer() -> None:
    with pytest.raises(Fault) as refused:
        check_outputs([new("one", "", "a")], ["a"], {})
    assert refused.value.kind is errors.DUPLICATE_PRODUCER


def test_an_input_nobody_makes_is_refused_with_its_placeholder() -> None:
    with pytest.raises(Fault) as refused:
        check_inputs([new("one", "a lost", "b")], ["a"])
    assert refused.value.kind is errors.UNPRODUCED_VARIABLE
    assert refused.value.field == "calls[0].LOST"
    assert "'lost'" in refused.value.message


def test_a_cycle_is_refused_with_the_calls_and_variables_on_it() -> None:
    batch = [new("start", "", "s"), new("one", "s y", "x"), new("two", "x", "y"), new("after", "y", "z")]
    with pytest.raises(Fault) as refused:
        topological_order(batch, producers(batch))
    assert refused.value.kind is errors.CYCLIC_GRAPH
    for named in ("calls[1] (one)", "calls[2] (two)", "'x'", "'y'"):
        assert named in refused.value.message
    assert "start" not in refused.value.message
    assert "after" not in refused.value.message


def test_a_call_that_reads_its_own_output_is_a_cycle() -> None:
    batch = [new("self", "a", "a")]
    with pytest.raises(Fault) as refused:
        topological_order(batch, producers(batch))
    assert refused.value.kind is errors.CYCLIC_GRAPH


def test_a_long_cycle_is_told_in_short() -> None:
    size = 500
    batch = [new(f"f{n}", f"v{(n - 1) % size}", f"v{n}") for n in range(size)]
    with pytest.raises(Fault) as refused:
        topological_order(batch, producers(batch))
    assert "and 492 more" in refused.value.message


@given(st.data())
def test_producers_come_before_consumers_and_submission_order_breaks_ties(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    layout = data.draw(st.permutations(range(size)))
    batch: list[NewCall] = []
    for rank in layout:
        inputs = data.draw(st.sets(st.integers(0, rank - 1))) if rank else set()
        batch.append(new(f"f{rank}", " ".join(f"v{n}" for n in sorted(inputs)), f"v{rank}"))
    order = topological_order(batch, producers(batch))
    seen: set[str] = set()
    for place in order:
        assert {edge.variable_id for edge in batch[place].inputs} <= seen
        seen |= {edge.variable_id for edge in batch[place].outputs}
    if all(list(layout)[n] == n for n in range(size)):
        assert order == list(range(size))
