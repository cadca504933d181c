"""Applications as graphs: only what can be run can be made."""

from __future__ import annotations

import pytest

from parrot_bench.graphs import Application, Call, Ref, Text, Workload


def call(name: str, *reads: str) -> Call:
    return Call(name, (Text("say: "), *map(Ref, reads)), 4)


def test_a_prompt_is_its_segments_with_outputs_in_their_places() -> None:
    made = Call("c", (Text("a "), Ref("x"), Text(" b "), Ref("y"), Ref("x")), 1)
    assert made.render({"x": "{{y}}", "y": ""}) == "a {{y}} b {{y}}"
    assert made.reads == ("x", "y")
    with pytest.raises(KeyError):
        made.render({"x": "1"})


@pytest.mark.parametrize(
    ("calls", "finals"),
    [
        ((call("a"), call("a")), ("a",)),
        ((call("a", "a"),), ("a",)),
        ((call("a", "b"), call("b", "a")), ("a",)),
        ((call("b", "a"), call("a")), ("b",)),
        ((call("a", "nowhere"),), ("a",)),
        ((call("a"),), ("b",)),
        ((call("a"),), ()),
        ((), ()),
    ],
)
def test_what_has_a_cycle_or_a_gap_is_no_application(
    calls: tuple[Call, ...], finals: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="app"):
        Application("app", calls, finals)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "{{a}}"])
def test_a_calls_name_can_be_a_placeholders(name: str) -> None:
    with pytest.raises(ValueError, match="identifier"):
        call(name)


@pytest.mark.parametrize(("prompt", "tokens"), [((), 1), ((Text(""),), 1), ((Text("a"),), 0)])
def test_a_call_has_a_prompt_and_an_output(prompt: tuple[Text, ...], tokens: int) -> None:
    with pytest.raises(ValueError, match="call a"):
        Call("a", prompt, tokens)


def test_a_workload_tells_who_comes_when() -> None:
    first, late = (Application(name, (call("a"),), ("a",), at) for name, at in (("x", 0.0), ("y", 5.0)))
    assert Workload("w", (first, late)).of("application") == (first, late)
    for wrong in ((late, first), (first, first)):
        with pytest.raises(ValueError, match="w: "):
            Workload("w", wrong)
