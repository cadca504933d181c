"""What blocks and conditions become, event by event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
from tests.support.machine import PLAIN
from tests.support.stage import Function, Stage, joined, listed, new

from parrot_manager.core import events
from parrot_manager.core.blocks.checks import define
from parrot_manager.core.blocks.definitions import (
    Carried,
    Collected,
    ListForm,
    Listing,
    Loop,
    Map,
    NewBlock,
    Result,
    Select,
)
from parrot_manager.core.blocks.model import BlockState
from parrot_manager.core.blocks.questions import Texts
from parrot_manager.core.conditions import Condition, Predicate
from parrot_manager.core.events import ValuesRead
from parrot_manager.core.model import CallState, SessionState, Value
from parrot_manager.core.scheduling.policies import Limits
from parrot_manager.core.state import Policy
from parrot_manager.core.submissions import NewCall
from parrot_runtime import limits

JSON = Listing(ListForm.JSON_ARRAY)


def says(variable_id: str, text: str, *, negate: bool = False) -> Condition:
    """A condition: the text is this one."""
    return Condition(variable_id, Predicate.EQUALS, text, negate=negate)


LONG: Final = says("longer", "xaaa")


def mapped(
    body: Sequence[NewCall] = (new("shout", "item", "loud"),),
    *,
    collected: str = "loud",
    into: str = "all",
    when: Condition | None = None,
    joined_by: str | None = None,
    max_items: int = 0,
) -> NewBlock:
    """A map over a list; each instance reads `item` and `index`."""
    plan = Map(
        "list",
        JSON,
        "item",
        "index",
        tuple(body),
        (),
        (Collected(collected, into, into, joined_by),),
        max_items,
    )
    return define("m", plan, when, f"map {into}".encode(), "blocks[0]")


def looped(
    *,
    until: Condition = LONG,
    rounds: int = 5,
    must_hold: bool = False,
    when: Condition | None = None,
) -> NewBlock:
    """A loop that carries `longer` on as `text`; its result is `grown`."""
    plan = Loop(
        (new("grow", "text", "longer"),),
        (),
        (Carried("text", "start", "longer"),),
        until,
        rounds,
        (Result("longer", "grown", "grown"),),
        must_hold,
    )
    return define("l", plan, when, b"loop", "blocks[0]")


def selected(*names: str) -> NewBlock:
    """A selection; its output is `chosen`."""
    return define("s", Select(names, "chosen", "chosen"), None, b"select", "blocks[0]")


def stage(*, lazy: bool = False, policy: Policy = PLAIN, **functions: Function) -> Stage:
    """A stage with some functions that tests share."""
    shared: dict[str, Function] = {
        "shout": lambda texts: texts[0].upper(),
        "grow": lambda texts: texts[0] + "a",
        "join": joined,
        "list": listed("a", "b", "c"),
        "break": lambda texts: None,
    }
    return Stage({**shared, **functions}, lazy=lazy, policy=policy)


def test_a_map_runs_its_body_for_each_item_and_collects_in_order() -> None:
    play = stage()
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped()])
    play.settle()
    assert play.text("all") == '["A","B","C"]'
    assert play.text("end") == '["A","B","C"]'
    assert play.ends_told["all"] == "READY"


def test_instances_are_calls_like_others_and_say_whose_they_are() -> None:
    play = stage()
    play.submit(
        [],
        [mapped([new("shout", "item", "loud"), new("join", "loud index", "both")], collected="both")],
        {"list": '["x", 7, {"k": [1]}]'},
    )
    play.settle()
    assert play.text("all") == '["X+0","7+1","{\\"K\\":[1]}+2"]'
    calls = play.rows.calls
    assert [calls[f"c-{n}"].name for n in range(2, 8)] == ["shout", "join"] * 3
    assert {call.block_id for call in calls.values()} == {"b-1"}
    assert calls["c-3"].input_ids == ("b-1-0-loud", "b-1-0-index")
    assert play.text("b-1-2-loud") == '{"K":[1]}'


def test_an_empty_list_makes_an_empty_collection() -> None:
    play = stage()
    play.submit([], [mapped(), mapped(into="text", joined_by=", ")], {"list": "[]"})
    play.settle()
    assert (play.text("all"), play.text("text")) == ("[]", "")
    assert not play.rows.calls


def test_items_that_are_skipped_are_left_out() -> None:
    play = stage()
    body = [new("shout", "item", "loud", when=says("item", "b", negate=True))]
    play.submit([new("list", "", "list")], [mapped(body, joined_by="-")])
    play.settle()
    assert play.text("all") == "A-C"
    assert play.state("b-2-1-loud") == "skipped"


def test_an_item_that_fails_fails_the_map_at_once_with_its_cause_and_cancels_the_rest() -> None:
    play = stage(shout=lambda texts: None if texts[0] == "b" else texts[0])
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped()])
    while len(play.running) < 3:
        play.act()
    play.finish(play.running[1])
    failure = play.failure("all")
    assert failure.type == "upstream_failed"
    assert failure.cause_type == "prompt_too_long"
    assert failure.cause_call_id == "c-5"
    assert "item 1 failed" in failure.message
    assert play.failure("end").cause_call_id == "c-5"
    assert [ref.call_id for ref in play.cancelled] == ["c-4", "c-6"]
    assert play.rows.blocks["b-3"].state is BlockState.FAILED
    assert not play.running


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("no list", "transform_failed", "no JSON"),
        ('{"a": 1}', "transform_failed", "no JSON array"),
        ("[1, 2, 3, 4]", "too_large", "more than 3 items"),
    ],
)
def test_a_value_that_is_no_list_or_too_long_fails_the_map(text: str, kind: str, why: str) -> None:
    play = stage()
    play.submit([new("join", "all", "end")], [mapped(max_items=3)], {"list": text})
    play.settle()
    assert play.failure("all").type == kind
    assert why in play.failure("all").message
    assert play.failure("all").call_id == "b-2"
    assert (play.failure("end").cause_type, play.failure("end").cause_call_id) == (kind, "b-2")


def test_a_call_runs_only_if_its_condition_holds_and_skips_spread() -> None:
    play = stage()
    calls = [
        new("join", "a", "b", when=says("mood", "good")),
        new("join", "a", "c", when=says("mood", "bad")),
        new("join", "c", "d"),
        new("join", "b", "e"),
    ]
    play.submit(calls, values={"a": "A", "mood": "good"})
    play.settle()
    assert [play.state(name) for name in "bcde"] == ["ready", "skipped", "skipped", "ready"]
    assert play.rows.calls["c-2"].state is CallState.CANCELLED
    assert play.failure("d").cause_call_id == "c-2"
    assert {command.call.id for command in play.dispatched} == {"c-1", "c-4"}


def test_a_condition_that_can_not_be_told_fails_its_call() -> None:
    play = stage()
    slow = Condition("a", Predicate.MATCHES, "(?:xy){200}")
    play.submit([new("join", "a", "b", when=slow)], values={"a": "x" * 1_000_000})
    play.settle()
    assert play.failure("b").type == "transform_failed"
    assert "too long for this pattern" in play.failure("b").message


def test_a_condition_about_what_failed_or_was_skipped_ends_the_call_alike() -> None:
    play = stage()
    calls = [
        new("break", "", "broken"),
        new("join", "a", "left", when=says("a", "nothing")),
        new("join", "a", "b", when=says("broken", "x")),
        new("join", "a", "c", when=says("left", "x")),
    ]
    play.submit(calls, values={"a": "A"})
    play.settle()
    assert [play.state(name) for name in ("b", "c")] == ["failed", "skipped"]


def test_a_loop_goes_on_until_its_condition_holds() -> None:
    play = stage()
    play.submit([new("join", "grown", "end")], [looped()], {"start": "x"})
    play.settle()
    assert play.text("end") == "xaaa"
    assert play.rows.blocks["b-2"].count == 3
    assert [play.text(f"b-2-{n}-longer") for n in (1, 2, 3)] == ["xa", "xaa", "xaaa"]


def test_a_loop_whose_rounds_are_over_keeps_its_last_result_or_fails() -> None:
    kept, failed = stage(), stage()
    kept.submit([], [looped(rounds=2)], {"start": "x"})
    failed.submit([], [looped(rounds=2, must_hold=True)], {"start": "x"})
    kept.settle()
    failed.settle()
    assert kept.text("grown") == "xaa"
    assert failed.failure("grown").type == "condition_failed"
    assert "none of its 2 rounds" in failed.failure("grown").message


def test_a_failed_round_is_named() -> None:
    play = stage(grow=lambda texts: None if len(texts[0]) == 2 else texts[0] + "a")
    play.submit([], [looped()], {"start": "x"})
    play.settle()
    assert "round 2 failed" in play.failure("grown").message
    assert play.failure("grown").cause_call_id == "c-3"


def test_a_selection_takes_the_first_that_was_not_skipped() -> None:
    play = stage()
    calls = [
        new("join", "a", "b", when=says("a", "other")),
        new("shout", "a", "c"),
        new("break", "a", "d"),
    ]
    play.submit(calls, [selected("b", "c", "d")], {"a": "x"})
    play.settle()
    assert play.text("chosen") == "X"


def test_a_selection_of_nothing_is_skipped_and_one_that_meets_a_failure_fails() -> None:
    play, failed = stage(), stage()
    play.submit([new("join", "a", "b", when=says("a", "no"))], [selected("b")], {"a": "x"})
    failed.submit([new("break", "", "b"), new("join", "a", "c")], [selected("b", "c")], {"a": "x"})
    play.settle()
    failed.settle()
    assert play.state("chosen") == "skipped"
    assert failed.failure("chosen").cause_call_id == "c-1"


def test_a_block_with_a_condition_is_skipped_with_its_outputs() -> None:
    play = stage()
    play.submit(
        [new("join", "all", "end")], [mapped(when=says("mood", "good"))], {"list": "[1]", "mood": "bad"}
    )
    play.settle()
    assert [play.state(name) for name in ("all", "end")] == ["skipped", "skipped"]
    assert play.rows.blocks["b-2"].state is BlockState.CANCELLED
    assert play.failure("end").cause_call_id == "b-2"


def test_numbers_of_instances_are_kept_for_them() -> None:
    play = stage()
    event = play.submit([new("join", "all", "end")], [mapped(max_items=10)], {"list": "[1,2]"})
    later = play.submit([new("join", "all", "more")])
    play.settle()
    assert [call.id for call in event.calls] == ["c-1"]
    assert [block.id for block in event.blocks] == ["b-2"]
    assert [call.id for call in later.calls] == ["c-13"]
    assert sorted(play.rows.calls) == ["c-1", "c-13", "c-3", "c-4"]
    orders = {call.id: call.order for call in play.rows.calls.values()}
    assert orders["c-3"] < orders["c-4"] < orders["c-1"] < orders["c-13"]


def test_closing_the_session_ends_its_blocks() -> None:
    play = stage()
    play.submit([new("list", "", "list")], [mapped(), looped()], {"start": "x"})
    play.act()
    play.close()
    assert play.rows.session.state is SessionState.CANCELLED
    assert {block.state for block in play.rows.blocks.values()} == {BlockState.CANCELLED}
    assert {play.state(name) for name in ("all", "grown")} == {"cancelled"}
    play.settle()


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    play = stage()
    play.submit([], [mapped()], {"list": "[1]"})
    late = play.reading[0]
    play.close()
    play.answer(late)
    assert not play.rows.calls


def test_a_lazy_block_unfolds_when_its_output_is_wanted() -> None:
    play = stage(lazy=True)
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped()])
    play.settle()
    assert not play.dispatched
    play.submit([new("join", "end", "more")], wanted=["more"])
    play.settle()
    assert play.text("more") == '["A","B","C"]'


def test_a_lazy_block_nobody_wants_stays_as_it_is() -> None:
    play = stage(lazy=True)
    play.submit([new("list", "", "list")], [mapped()], wanted=["list"])
    play.settle()
    assert play.text("list")
    assert play.rows.blocks["b-2"].state is BlockState.WAITING


@pytest.mark.parametrize("steps", range(14))
def test_a_lazy_map_goes_on_after_a_restart_though_who_wanted_it_was_skipped(steps: int) -> None:
    play = stage(lazy=True)
    skipped = new("join", "all", "end", when=says("gate", "open"))
    twice = mapped([new("shout", "item", "loud"), new("grow", "loud", "long")], collected="long")
    play.submit([new("list", "", "list"), skipped], [twice], {"gate": "shut"}, wanted=["end"])
    for _ in range(steps):
        play.act()
    play.restart()
    play.settle()
    play.submit([new("join", "all", "more")], wanted=["more"])
    play.settle()
    assert play.text("more") == '["Aa","Ba","Ca"]'


@pytest.mark.parametrize("steps", range(14))
def test_a_restart_at_any_point_changes_nothing(steps: int) -> None:
    play = stage()
    calls = [new("list", "", "list"), new("join", "all grown", "end")]
    play.submit(calls, [mapped(), looped()], {"start": "x"})
    for _ in range(steps):
        play.act()
    play.restart()
    play.settle()
    assert play.text("end") == '["A","B","C"]+xaaa'
    assert {call.attempt for call in play.rows.calls.values()} <= {1, 2}


def test_what_a_block_made_is_told_again_after_a_restart() -> None:
    play = stage()
    play.submit([new("list", "", "list")], [mapped()])
    play.settle()
    play.ends_told.clear()
    play.restart()
    assert play.ends_told["all"] == "READY"


def test_the_instances_of_a_map_are_one_group_ahead_of_it() -> None:
    play = stage()
    body = [new("shout", "item", "loud"), new("join", "loud index", "both")]
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped(body, collected="both")])
    live = play.machine.state.sessions[play.rows.session.id]
    before = live.calls["c-1"].objective
    assert before is not None
    assert before.reason == "latency: 2 stages ahead of c-2 (join)"
    while not play.rows.blocks["b-3"].count:
        play.act()
    for name, stages in (("join", ""), ("shout", "2 stages ")):
        members = [call for call in live.calls.values() if call.block_id and call.name == name]
        objectives = [call.objective for call in members if call.objective is not None]
        assert len({objective.group for objective in objectives}) == 1
        assert objectives[0].reason.startswith("latency: group of 3")
        assert {objective.latest_finish_ms for objective in objectives} == {objectives[0].latest_finish_ms}
        assert stages in objectives[0].reason


def test_what_a_condition_is_about_is_as_urgent_as_who_asks() -> None:
    play = stage()
    play.submit([new("list", "", "list"), new("join", "a", "end", when=says("list", "x"))], values={"a": "x"})
    objective = play.machine.state.sessions[play.rows.session.id].calls["c-1"].objective
    assert objective is not None
    assert objective.reason == "latency: ahead of c-2 (join)"


def test_cancelling_a_block_cancels_what_it_is_made_of_and_what_reads_it() -> None:
    play = stage()
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped()])
    while len(play.running) < 3:
        play.act()
    play.cancel("b-3")
    assert {play.state(name) for name in ("all", "end")} == {"cancelled"}
    assert len(play.cancelled) == 3
    assert play.rows.blocks["b-3"].state is BlockState.CANCELLED


def test_cancelling_one_instance_cancels_the_block() -> None:
    play = stage()
    play.submit([new("list", "", "list"), new("join", "all", "end")], [mapped()])
    while len(play.running) < 3:
        play.act()
    play.cancel("c-5")
    assert {play.state(name) for name in ("all", "end")} == {"cancelled"}
    assert not play.running


def test_a_selection_outlives_the_cancel_of_what_it_does_not_need() -> None:
    play = stage()
    calls = [new("join", "a", "b"), new("list", "a", "c"), new("join", "chosen", "end")]
    play.submit(calls, [selected("b", "c")], {"a": "x"})
    play.cancel("c-2")
    play.settle()
    assert play.text("end") == "x"
    assert play.state("c") == "cancelled"


def test_a_subtree_that_only_a_cancelled_block_needed_goes_with_it() -> None:
    play = stage()
    calls = [new("list", "", "list"), new("join", "a", "kept"), new("join", "kept", "more")]
    play.submit(calls, [mapped([new("join", "item kept", "loud")])], {"a": "x"})
    play.cancel("b-4", subtree=True)
    play.settle()
    assert [play.state(name) for name in ("all", "list", "kept", "more")] == [
        "cancelled",
        "cancelled",
        "ready",
        "ready",
    ]


def test_the_sessions_deadline_fails_its_blocks() -> None:
    play = stage()
    play.submit([new("list", "", "list")], [mapped(), looped()], {"start": "x"})
    play.act()
    play.expire()
    assert play.rows.session.state is SessionState.EXPIRED
    assert {block.state for block in play.rows.blocks.values()} == {BlockState.FAILED}
    assert {play.failure(name).type for name in ("all", "grown")} == {"deadline_exceeded"}
    assert not play.running


def test_a_map_does_not_fill_the_queue_beyond_its_tenants_limit() -> None:
    few = replace(PLAIN.scheduling, limits=Limits(tenant_calls=10))
    play = stage(policy=replace(PLAIN, scheduling=few))
    play.submit([], [mapped()], {"list": json.dumps(["x"] * 11)})
    play.settle()
    assert play.failure("all").type == "queue_full"
    assert play.failure("all").may_retry


def test_a_map_does_not_exceed_what_one_session_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_CALLS", 10)
    play = stage()
    play.submit([], [mapped()], {"list": json.dumps(["x"] * 11)})
    play.settle()
    assert play.failure("all").type == "too_large"


def test_blocks_of_an_ended_session_never_begin() -> None:
    play = stage()
    event = play.admit([], [mapped()], {"list": "[1]"})
    play.rows.accept(event)
    play.close()
    play.tell(event)
    play.settle()
    assert play.rows.blocks["b-1"].state is BlockState.CANCELLED
    assert not play.rows.calls


def test_an_answer_to_another_life_of_the_session_is_nobodys() -> None:
    play = stage()
    play.submit([], [mapped()], {"list": '["x"]'})
    before = play.reading[0]
    play.restart()
    assert play.reading[0].owner_id == before.owner_id
    play.tell(ValuesRead(before.session_id, before.owner_id, before.ask, (Texts((b"wrong",)),)))
    play.settle()
    assert play.text("all") == '["X"]'


def test_a_block_that_comes_when_an_input_has_failed_fails_at_once() -> None:
    play = stage()
    play.submit([new("break", "", "broken")])
    play.settle()
    play.submit([new("list", "", "list")], [mapped([new("join", "item broken", "loud")])])
    assert play.failure("all").cause_call_id == "c-1"
    assert "its input 'broken' failed" in play.failure("all").message


def test_a_call_that_comes_to_a_failed_and_a_skipped_input_fails() -> None:
    play = stage()
    play.submit(
        [new("join", "a", "left", when=says("a", "no")), new("break", "", "broken")], values={"a": "x"}
    )
    play.settle()
    play.submit([new("join", "left broken", "b"), new("join", "broken left", "c")])
    assert {play.failure(name).cause_call_id for name in ("b", "c")} == {"c-2"}


def test_a_cancel_leaves_those_alone_whose_input_was_made_before() -> None:
    play = stage()
    play.submit([new("join", "x", "a b"), new("join", "a", "end")], values={"x": "x"})
    play.tell(events.AttemptLost(play.running[0], values=(Value("a", b"made"),)))
    play.cancel("c-1")
    play.settle()
    assert (play.text("end"), play.state("b")) == ("made", "cancelled")
