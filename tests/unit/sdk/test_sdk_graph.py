"""Maps, loops and choices as they are sent, and what a body can't do, said where it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter

import parrot as P
from parrot.batch import BATCH_BLOCKS, requests
from parrot_gateway.compiling import compile_calls
from parrot_gateway.new_blocks import NewBatch, NewCalls
from parrot_gateway.new_calls import NewCall
from parrot_manager.block_requests import parse_block
from parrot_manager.condition_requests import Checks

BATCH: TypeAdapter[NewBatch | NewCall] = TypeAdapter(NewCalls)

say = P.define("say", "{{x}} {{output:y}}")
judge = P.define("judge", "{{x}} {{y}}", outputs={"y": Literal["good", "bad"]})
pair = P.define("pair", "{{x}} {{output:a}} and {{output:b}}")


@pytest.fixture(autouse=True)
def session() -> Iterator[P.Session]:
    """A session that was never opened on any server; calls join it."""
    made = P.Session()
    made._id = "s00-0123456789abcdef"
    made.use()
    yield made
    made.unuse()


def sent(session: P.Session) -> dict[str, Any]:
    """What would be sent; gateway and manager take it."""
    nodes, values = session._outbox._pending.take()
    (request,) = requests(nodes, values)
    compiled = compile_calls(BATCH.validate_python(request.body), "key")
    for place, block in enumerate(compiled.blocks):
        parse_block(block, f"blocks[{place}]", Checks())
    return request.body


def holes(call: dict[str, Any]) -> dict[str, str]:
    """The variable in each placeholder of a call."""
    return {p["name"]: p.get("semantic_var_id", "") for p in call["placeholders"]}


def test_a_map_sends_its_body_once_with_names_of_its_own(session: P.Session) -> None:
    topics = say("x")
    style = P.variable("style", "short")

    def each(topic: P.SemanticVariable, place: P.SemanticVariable) -> Any:
        first = say(topic)
        return first, pair(first), judge(style), judge(place)

    with pytest.raises(TypeError, match="returns tuple"):
        P.map(each, topics, with_index=True)

    def flat(topic: P.SemanticVariable, place: P.SemanticVariable) -> Any:
        first = say(topic)
        return first, *pair(first), judge(style), judge(place)

    made = P.map(flat, topics, with_index=True, max_items=9, name="each")
    body = sent(session)
    (block,) = body["blocks"]
    plan = block["map"]
    assert (block["name"], plan["list"], plan["item"], plan["index"]) == ("each", topics.id, "topic", "place")
    assert (plan["form"], plan["max_items"]) == ("json_array", 9)
    assert [holes(call) for call in plan["body"]] == [
        {"x": "topic", "y": "y"},
        {"x": "y", "a": "a", "b": "b"},
        {"x": style.id, "y": "y-2"},
        {"x": "place", "y": "y-3"},
    ]
    assert [found["from"] for found in plan["collected"]] == ["y", "a", "b", "y-2", "y-3"]
    assert [found["semantic_var_id"] for found in plan["collected"]] == [variable.id for variable in made]
    assert [value["semantic_var_id"] for value in body["variables"]] == [style.id]


def test_a_bodys_names_never_hide_a_variable_of_the_session(session: P.Session) -> None:
    outer = session.variable("y")
    P.map(lambda x: say(say(outer)), ["a"])
    (block,) = sent(session)["blocks"]
    assert [holes(call) for call in block["map"]["body"]] == [
        {"x": "y", "y": "y-2"},
        {"x": "y-2", "y": "y-3"},
    ]


@pytest.mark.parametrize(
    ("how", "form"),
    [({"lines": True}, "lines"), ({"separator": ", "}, {"separator": ", "}), ({}, "json_array")],
)
def test_the_form_of_a_list_is_said(session: P.Session, how: dict[str, Any], form: object) -> None:
    P.map(say, "a text", **how)
    assert sent(session)["blocks"][0]["map"]["form"] == form


def test_a_list_that_is_known_is_sent_as_json(session: P.Session) -> None:
    P.map(say, ["a", 1, {"b": None}, "漢"])
    body = sent(session)
    assert body["variables"][0]["value"] == '["a", 1, {"b": null}, "漢"]'
    assert body["calls"] == []


def test_a_loop_carries_what_its_body_returns_first(session: P.Session) -> None:
    def improve(draft: P.SemanticVariable, notes: P.SemanticVariable) -> Any:
        better = say(draft)
        verdict = judge(better)
        return better, say(notes), verdict, P.when(verdict, equals="good", transforms="strip", negate=True)

    first = say("x")
    made = P.loop(improve, first, "no notes", max_rounds=4, must_hold=True)
    body = sent(session)
    plan = body["blocks"][0]["loop"]
    notes = body["variables"][0]
    assert notes["value"] == "no notes"
    assert plan["carried"] == [
        {"body": "draft", "initial": first.id, "next": "y"},
        {"body": "notes", "initial": notes["semantic_var_id"], "next": "y-3"},
    ]
    assert plan["until"] == {
        "semantic_var_id": "y-2",
        "equals": "good",
        "transforms": ["strip"],
        "negate": True,
    }
    assert [found["semantic_var_id"] for found in plan["results"]] == [variable.id for variable in made]
    assert (plan["max_rounds"], plan["must_hold"], body["blocks"][0]["name"]) == (4, True, "improve")


def test_a_retry_is_a_loop_that_carries_nothing_and_must_hold(session: P.Session) -> None:
    P.retry(lambda: judge("x"))
    P.retry(lambda: pair("x"), until=lambda a, b: P.when(b, contains="ok"), max_rounds=5)
    P.retry(lambda: P.define("n", "{{x}} {{n}}", outputs={"n": list[int]})("x"))
    plans = [block["loop"] for block in sent(session)["blocks"]]
    assert [plan["carried"] for plan in plans] == [[], [], []]
    assert [plan["max_rounds"] for plan in plans] == [3, 5, 3]
    assert all(plan["must_hold"] for plan in plans)
    assert plans[0]["until"] == {"semantic_var_id": "y", "matches": r"\A\s*(good|bad)\s*\z"}
    assert plans[1]["until"] == {"semantic_var_id": "b", "contains": "ok"}
    assert plans[2]["until"]["json_schema"] == '{"type":"array","items":{"type":"integer"}}'
    with pytest.raises(TypeError, match="every text is a str"):
        P.retry(lambda: say("x"))


def test_calls_in_a_conditions_block_run_only_if_it_holds(session: P.Session) -> None:
    verdict = judge("x")
    with P.when(verdict, equals="good"):
        inside = say("a")
        mapped = P.map(say, inside)
    outside = say("b")
    body = sent(session)
    condition = {"semantic_var_id": verdict.id, "equals": "good"}
    assert [call.get("when") for call in body["calls"]] == [None, condition, None]
    assert body["blocks"][0]["when"] == condition
    assert mapped._under == inside._under != outside._under == ()


def test_conditions_within_conditions_hold_together(session: P.Session) -> None:
    first, second = judge("a"), judge("b")
    with P.when(first, equals="good"):
        third = judge("c")
        with P.when(second, equals="bad"):
            say("d")
            say("e")
        with P.when(third, equals="bad"):
            say("f")
    body = sent(session)
    (gate,) = body["blocks"]
    assert gate["select"]["from"] == [second.id]
    assert gate["when"] == {"semantic_var_id": first.id, "equals": "good"}
    whens = [call["when"]["semantic_var_id"] for call in body["calls"] if "when" in call]
    gated = gate["select"]["semantic_var_id"]
    assert whens == [first.id, gated, gated, third.id]


def test_a_choice_is_two_branches_and_a_select(session: P.Session) -> None:
    verdict, before = judge("x"), say("before")
    good = P.when(verdict, equals="good")
    chosen = P.cond(good, lambda: say("a"), lambda: before)
    body = sent(session)
    gate, select = body["blocks"]
    call = body["calls"][-1]
    assert call["when"] == {"semantic_var_id": verdict.id, "equals": "good"}
    assert gate["when"] == {**call["when"], "negate": True}
    assert gate["select"]["from"] == [before.id]
    assert select["select"]["from"] == [holes(call)["y"], gate["select"]["semantic_var_id"]]
    assert select["select"]["semantic_var_id"] == chosen.id


def test_in_a_body_a_choice_may_leave_out_but_not_choose(session: P.Session) -> None:
    def kept(x: P.SemanticVariable) -> Any:
        return P.cond(P.when(judge(x), equals="good"), lambda: say(x))

    P.map(kept, ["a"])
    body = sent(session)["blocks"][0]["map"]["body"]
    assert body[1]["when"] == {"semantic_var_id": "y", "equals": "good"}
    with pytest.raises(P.SessionError, match="there can't be a select"):
        P.map(lambda x: P.cond(P.when(judge(x), equals="good"), lambda: say(x), lambda: say("b")), ["a"])


def test_types_pass_through_blocks(session: P.Session) -> None:
    verdict = judge("x")
    mapped = P.map(judge, ["a"])
    results = [
        P.loop(lambda x: (judge(x), P.when(judge(x), equals="good")), "x", max_rounds=1),
        P.select(verdict),
        P.cond(P.when(verdict, equals="good"), lambda: judge("a"), lambda: judge("b")),
    ]
    assert {result._type.annotation for result in results} == {Literal["good", "bad"]}
    assert mapped._type.read('["good"]', "") == ["good"]
    assert P.map(judge, ["a"], joined_by=" ")._type.read("good", "") == "good"
    sent(session)


def no_call(x: P.SemanticVariable) -> P.SemanticVariable:
    return x


async def asynchronous(x: P.SemanticVariable) -> Any:
    return say(x)


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (lambda: P.map(no_call, ["a"]), P.SessionError, "makes no call"),
        (lambda: P.map(asynchronous, ["a"]), TypeError, "not an async one"),
        (lambda: P.map(lambda x: say(x) and None, ["a"]), TypeError, "returns NoneType"),
        (
            lambda: P.map(lambda x: (say(x), x), ["a"]),
            P.SessionError,
            "read what does not change from outside",
        ),
        (lambda: P.map(lambda x: say(x).get(), ["a"]), P.SessionError, "use what P.map returns"),
        (lambda: P.map(lambda x: P.map(say, x), ["a"]), P.SessionError, "P.map can't be used in the body"),
        (lambda: P.map(lambda x: P.select(say(x)), ["a"]), P.SessionError, "there can't be a select"),
        (lambda: P.map(say, 5), TypeError, "not int"),  # type: ignore[arg-type]
        (lambda: P.map(say, [say("a")]), TypeError, "are there already"),
        (lambda: P.map(say, [object()]), TypeError, "what JSON has"),
        (lambda: P.map(say, "a", lines=True, separator=","), ValueError, "not both"),
        (lambda: P.map(say, "a", separator=""), ValueError, "empty"),
        (lambda: P.loop(say, "a", max_rounds=2), TypeError, "the condition that ends it"),
        (
            lambda: P.loop(lambda x: (x, P.when(say(x), empty=True)), "a", max_rounds=2),
            P.SessionError,
            "which no call of the body makes",
        ),
        (
            lambda: P.loop(lambda x: (say(x), P.when(x, empty=True)), "a", max_rounds=2),
            P.SessionError,
            "what the condition is about",
        ),
        (lambda: P.loop(say, "a", max_rounds=0), ValueError, "max_rounds is 0; it is 1 to 100"),
        (lambda: P.retry(lambda: judge("a"), max_rounds=101), ValueError, "max_rounds is 101"),
        (lambda: P.map(say, ["a"], max_items=1_001), ValueError, "max_items is 1001; it is 1 to 1,000"),
        (lambda: P.map(say, ["a"], max_items=True), TypeError, "max_items is an integer"),
        (P.select, TypeError, "one at least"),
        (lambda: P.when(say("a")), ValueError, "a condition has one of"),
        (lambda: P.when(say("a"), equals="b", empty=True), ValueError, "a condition has one of"),
        (lambda: P.when("a", equals="b"), TypeError, "about a variable"),  # type: ignore[arg-type]
        (lambda: P.when(say("a"), equals="\ud800"), P.InvalidText, "equals"),
        (lambda: bool(P.when(say("a"), empty=True)), TypeError, "decided on the server"),
        (
            lambda: P.cond(P.when(say("a"), empty=True), lambda: pair("b"), lambda: say("c")),
            TypeError,
            "return 2 and 1 values",
        ),
        (lambda: P.cond(P.when(say("a"), empty=True), lambda: 5), TypeError, "a variable or a text"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(
    use: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        use()


def test_a_variable_of_a_body_is_of_no_use_outside(session: P.Session) -> None:
    kept: list[P.SemanticVariable] = []
    P.map(lambda x: kept.append(x) or say(x), ["a"])  # type: ignore[func-returns-value]
    with pytest.raises(P.SessionError, match="differs from instance to instance"):
        say(kept[0])
    with pytest.raises(P.SessionError, match="has no value here"):
        kept[0].get()
    with pytest.raises(P.SessionError, match="body of P"):
        P.map(lambda x: say(kept[0]), ["a"])


def test_a_body_stays_in_the_session_of_its_block(session: P.Session) -> None:
    other = P.Session()
    other._id = "s01-0123456789abcdef"
    with pytest.raises(P.SessionError, match=r"another session than the P\.map it is in"):
        P.map(lambda x: say(x, session=other), ["a"])
    theirs = say("a", session=other)
    with pytest.raises(P.SessionError, match="belongs to another session"):
        P.map(lambda x: pair(say(x))[0] and say(theirs), ["a"])


def test_a_body_that_fails_leaves_nothing_behind(session: P.Session) -> None:
    def broken(x: P.SemanticVariable) -> Any:
        say(x)
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        P.map(broken, ["a"])
    with pytest.raises(ZeroDivisionError), P.when(judge("x"), equals="good"):
        1 / 0  # noqa: B018
    say("a")
    body = sent(session)
    assert len(body["calls"]) == 2
    assert "blocks" not in body
    assert not any("when" in call for call in body["calls"])


def test_more_blocks_than_a_request_holds_travel_in_several_in_their_order(session: P.Session) -> None:
    chain = say("x")
    for _ in range(BATCH_BLOCKS + 1):
        chain = P.select(chain)
    last = say(chain)
    batch = list(requests(*session._outbox._pending.take()))
    assert [len(request.body.get("blocks", [])) for request in batch] == [BATCH_BLOCKS, 1]
    assert [len(request.body["calls"]) for request in batch] == [1, 1]
    assert holes(batch[1].body["calls"][0])["y"] == last.id
