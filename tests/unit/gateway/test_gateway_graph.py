"""Conditions, blocks and native calls: from what clients send to what the manager takes, mistakes named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pydantic import TypeAdapter, ValidationError

from parrot_gateway.compiling import compile_calls
from parrot_gateway.locating import locate
from parrot_gateway.new_blocks import NewBatch, NewCalls
from parrot_gateway.new_calls import NewCall
from parrot_gateway.problems import invalid
from parrot_manager import requests
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

ROOT = Path(__file__).parents[3]
CALLS: TypeAdapter[NewBatch | NewCall] = TypeAdapter(NewCalls)
Body = dict[str, Any]
Change = Callable[[Body], object]
SOURCE = "def shout(text):\n    return text.upper()\n"


def spoken(inputs: str, output: str, **more: Any) -> Body:
    """A call whose placeholders are named as its variables; its output's id is left to the server."""
    names = inputs.split()
    holes = [{"name": name, "in_out": "in", "semantic_var_id": name} for name in names]
    prompt = "Say " + " ".join(f"{{{{{name}}}}}" for name in (*names, output))
    return {"prompt": prompt, "placeholders": [*holes, {"name": output, "in_out": "out"}], **more}


def request() -> Body:
    """A batch with one of each kind of block, a condition of each kind, and a native call."""
    native = {**spoken("best", "checked"), "native": {"kind": "client", "timeout_s": 0.0004}}
    del native["prompt"]
    return {
        "variables": [{"semantic_var_id": "topics", "value": "[]"}],
        "calls": [
            {**native, "when": {"semantic_var_id": "best", "empty": True, "negate": True}},
        ],
        "blocks": [
            {
                "name": "each",
                "map": {
                    "list": "topics",
                    "form": {"separator": ";"},
                    "item": "topic",
                    "index": "place",
                    "body": [spoken("topic", "line", when={"semantic_var_id": "topic", "contains": "a"})],
                    "collected": [
                        {"from": "line", "semantic_var_id": "draft", "joined_by": "\n"},
                        {"from": "line", "name": "list"},
                    ],
                    "max_items": 7,
                },
                "when": {"semantic_var_id": "topics", "is_json": True, "transforms": "strip"},
            },
            {
                "loop": {
                    "body": [spoken("text", "better"), spoken("better", "verdict")],
                    "carried": [{"body": "text", "initial": "draft", "next": "better"}],
                    "until": {"semantic_var_id": "verdict", "json_schema": {"const": "yes"}},
                    "max_rounds": 5,
                    "results": [{"from": "better", "semantic_var_id": "final"}],
                    "must_hold": True,
                }
            },
            {"select": {"from": ["final", "draft"], "semantic_var_id": "best", "name": "the best"}},
        ],
    }


def compiled(body: Body) -> pb.SubmitCallsRequest:
    """What the manager is asked."""
    made = compile_calls(CALLS.validate_python(body), "key")
    return pb.SubmitCallsRequest(calls=made.calls, values=made.values, blocks=made.blocks, wanted=made.wanted)


def refusal(body: Body) -> Fault:
    """Why a body is refused, here or by the manager, as the client is told."""
    try:
        sent = CALLS.validate_python(body)
    except ValidationError as error:
        found = error.errors()
        return invalid([{**first, "loc": ("body", *first["loc"])} for first in found])
    try:
        made = compile_calls(sent)
        asked = pb.SubmitCallsRequest(calls=made.calls, values=made.values, blocks=made.blocks)
    except Fault as fault:
        return fault
    try:
        requests.parse(asked)
    except Fault as fault:
        return locate(fault, sent)
    raise AssertionError("it was accepted")


def test_every_part_of_a_graph_reaches_the_manager() -> None:
    made = json_format.MessageToDict(compiled(request()), preserving_proto_field_name=True)
    each, improve, best = made["blocks"]
    mapped, looped = each["map"], improve["loop"]
    assert (each["name"], each["when"]) == (
        "each",
        {"variable_id": "topics", "is_json": True, "transforms": ["strip"]},
    )
    own_id = mapped["collected"][1].pop("variable_id")
    assert own_id.startswith("v-")
    body = mapped.pop("body")
    assert mapped == {
        "list_variable_id": "topics",
        "form": {"separator": ";"},
        "item_variable_id": "topic",
        "index_variable_id": "place",
        "collected": [
            {"body_variable_id": "line", "variable_id": "draft", "name": "line", "joined_by": "\n"},
            {"body_variable_id": "line", "name": "list"},
        ],
        "max_items": 7,
    }
    assert body[0]["when"] == {"variable_id": "topic", "contains": "a"}
    assert body[0]["segments"][-1]["output"]["variable_id"] == "line"
    assert looped["carried"] == [
        {"body_variable_id": "text", "initial_variable_id": "draft", "next_variable_id": "better"}
    ]
    assert looped["until"] == {"variable_id": "verdict", "json_schema": '{"const":"yes"}'}
    assert (looped["max_rounds"], looped["must_hold"]) == (5, True)
    assert looped["results"] == [{"body_variable_id": "better", "variable_id": "final", "name": "better"}]
    assert best["select"] == {
        "from_variable_ids": ["final", "draft"],
        "variable_id": "best",
        "name": "the best",
    }
    (checked,) = made["calls"]
    assert checked["when"] == {"variable_id": "best", "empty": True, "negate": True}
    assert checked["native"] == {"client": {"timeout_ms": 1}}


def test_the_manager_takes_what_the_gateway_makes() -> None:
    found = requests.parse(compiled(request()))
    assert [block.plan.kind for block in found.blocks] == ["map", "loop", "select"]


def test_the_same_request_under_its_key_names_the_same_variables() -> None:
    assert compiled(request()) == compiled(request())


def test_a_native_call_has_holes_and_no_text() -> None:
    body = {
        "native": {"kind": "sandbox", "source": SOURCE, "entry": "shout", "memory_bytes": limits.MIB},
        "placeholders": [
            {"name": "loud", "in_out": "out", "semantic_var_id": "loud"},
            {"name": "text", "in_out": "in", "value": "hey", "transforms": ["strip"]},
        ],
    }
    asked = compiled(body)
    (call,) = asked.calls
    assert [segment.WhichOneof("piece") for segment in call.segments] == ["input", "output"]
    assert list(call.segments[0].input.transforms) == ["strip"]
    sandbox = call.native.sandbox
    assert (sandbox.source, sandbox.entry, sandbox.timeout_ms) == (SOURCE, "shout", 1000)
    assert sandbox.memory_bytes == limits.MIB
    assert asked.values[0].value == "hey"


def test_a_value_in_a_body_is_a_variable_of_the_session() -> None:
    body = request()
    hole = body["blocks"][0]["map"]["body"][0]["placeholders"][0]
    del hole["semantic_var_id"]
    hole["value"] = "the sea"
    asked = compiled(body)
    assert [value.value for value in asked.values] == ["[]", "the sea"]
    assert asked.blocks[0].map.body[0].segments[1].input.variable_id == asked.values[1].variable_id


def test_what_an_output_is_wanted_for_reaches_the_manager() -> None:
    body = spoken("", "text")
    body["placeholders"][0] |= {"semantic_var_id": "text", "criteria": {"kind": "ttft"}}
    (wanted,) = compiled(body).wanted
    assert (wanted.variable_id, wanted.criteria.kind) == ("text", pb.OBJECTIVE_KIND_TTFT)


def test_the_example_of_the_documentation_is_a_graph() -> None:
    text = (ROOT / "docs" / "graphs.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        assert requests.parse(compiled(json.loads(example))).blocks


@pytest.mark.parametrize("body", [{"blocks": request()["blocks"]}, {"variables": request()["variables"]}])
def test_a_batch_may_be_without_calls(body: Body) -> None:
    assert not compiled(body).calls


def _map(body: Body) -> Body:
    found: Body = body["blocks"][0]["map"]
    return found


def _loop(body: Body) -> Body:
    found: Body = body["blocks"][1]["loop"]
    return found


def _select(body: Body) -> Body:
    found: Body = body["blocks"][2]["select"]
    return found


def _native(body: Body) -> Body:
    found: Body = body["calls"][0]
    return found


def _sandboxed(body: Body, **more: Any) -> None:
    _native(body)["native"] = {"kind": "sandbox", "source": SOURCE, "entry": "shout", **more}


WRONG: list[tuple[Change, str, str]] = [
    (lambda b: b["blocks"][0].pop("map"), "invalid_request", "blocks[0]"),
    (lambda b: b["blocks"][0].update(select=_select(b)), "invalid_request", "blocks[0]"),
    (lambda b: b.update(blocks=[b["blocks"][0]] * 257), "too_large", "blocks"),
    (lambda b: _map(b).pop("list"), "invalid_request", "blocks[0].map.list"),
    (lambda b: _map(b).update(list="a b"), "invalid_request", "blocks[0].map.list"),
    (lambda b: _map(b).update(item="a b"), "invalid_request", "blocks[0].map.item"),
    (lambda b: _map(b).update(index="topic"), "invalid_block", "blocks[0].map.index"),
    (lambda b: _map(b).update(form="json"), "invalid_request", "blocks[0].map.form"),
    (lambda b: _map(b).update(form={"separator": ""}), "invalid_request", "blocks[0].map.form.separator"),
    (lambda b: _map(b).update(form={}), "invalid_request", "blocks[0].map.form.separator"),
    (lambda b: _map(b).update(body=[]), "invalid_block", "blocks[0].map.body"),
    (lambda b: _map(b).update(body=_map(b)["body"] * 65), "too_large", "blocks[0].map.body"),
    (lambda b: _map(b).update(max_items=0), "invalid_request", "blocks[0].map.max_items"),
    (lambda b: _map(b).update(max_items=1001), "invalid_request", "blocks[0].map.max_items"),
    (lambda b: _map(b).update(collected=[]), "invalid_block", "blocks[0].map.collected"),
    (
        lambda b: _map(b)["collected"][1].update({"from": "quiet"}),
        "invalid_block",
        "blocks[0].map.collected[1].from",
    ),
    (
        lambda b: _map(b)["collected"][0].update(semantic_var_id="."),
        "invalid_request",
        "blocks[0].map.collected[0].semantic_var_id",
    ),
    (
        lambda b: _map(b)["body"][0].update(prompt="{{"),
        "invalid_template",
        "blocks[0].map.body[0].prompt",
    ),
    (
        lambda b: _map(b)["body"][0]["placeholders"][1].update(semantic_var_id="topic"),
        "duplicate_producer",
        "blocks[0].map.body[0].placeholders[1].semantic_var_id",
    ),
    (
        lambda b: _map(b)["body"][0]["placeholders"][1].update(criteria={"kind": "latency"}),
        "invalid_request",
        "blocks[0].map.body[0].placeholders[1].criteria",
    ),
    (lambda b: _loop(b).pop("until"), "invalid_request", "blocks[1].loop.until"),
    (lambda b: _loop(b).update(max_rounds=0), "invalid_request", "blocks[1].loop.max_rounds"),
    (lambda b: _loop(b).update(results=[]), "invalid_block", "blocks[1].loop.results"),
    (
        lambda b: _loop(b)["carried"].append(_loop(b)["carried"][0]),
        "invalid_block",
        "blocks[1].loop.carried[1].body",
    ),
    (
        lambda b: _loop(b)["carried"][0].update(next="text"),
        "invalid_block",
        "blocks[1].loop.carried[0].next",
    ),
    (
        lambda b: _loop(b)["until"].update(semantic_var_id="text"),
        "invalid_block",
        "blocks[1].loop.until.semantic_var_id",
    ),
    (
        lambda b: _loop(b)["until"].update(json_schema={"type": 1}),
        "invalid_request",
        "blocks[1].loop.until.json_schema",
    ),
    (lambda b: _loop(b)["until"].update(equals="yes"), "invalid_request", "blocks[1].loop.until"),
    (
        lambda b: _loop(b)["body"][0]["placeholders"][0].update(semantic_var_id="verdict"),
        "cyclic_graph",
        "blocks[1].loop.body[0].placeholders",
    ),
    (lambda b: _select(b).update({"from": []}), "invalid_block", "blocks[2].select.from"),
    (lambda b: _select(b).update({"from": ["a"] * 65}), "too_large", "blocks[2].select.from"),
    (lambda b: _select(b).update({"from": ["a", "."]}), "invalid_request", "blocks[2].select.from[1]"),
    (lambda b: _native(b)["when"].pop("empty"), "invalid_request", "calls[0].when"),
    (lambda b: _native(b)["when"].update(empty=False), "invalid_request", "calls[0].when.empty"),
    (
        lambda b: _native(b).update(when={"semantic_var_id": "best", "matches": "(a"}),
        "invalid_request",
        "calls[0].when.matches",
    ),
    (
        lambda b: _native(b).update(
            when={"semantic_var_id": "best", "equals": "x" * (limits.CONDITION_BYTES + 1)}
        ),
        "too_large",
        "calls[0].when.equals",
    ),
    (
        lambda b: _native(b)["when"].update(transforms=["no"]),
        "invalid_request",
        "calls[0].when.transforms[0]",
    ),
    (lambda b: _native(b).update(prompt="x"), "invalid_request", "calls[0]"),
    (lambda b: _native(b).pop("native"), "invalid_request", "calls[0]"),
    (lambda b: _native(b).update(model="m"), "invalid_request", "calls[0].model"),
    (lambda b: _native(b)["native"].update(kind="server"), "invalid_request", "calls[0].native.kind"),
    (lambda b: _native(b)["native"].update(timeout_s=0), "invalid_request", "calls[0].native.timeout_s"),
    (lambda b: _native(b)["placeholders"].pop(), "placeholder_mismatch", "calls[0].placeholders"),
    (
        lambda b: _native(b)["placeholders"][0].update(name="a-b"),
        "invalid_request",
        "calls[0].placeholders[0].name",
    ),
    (
        lambda b: _native(b)["placeholders"][1].update(sampling={}),
        "invalid_request",
        "calls[0].placeholders[1].sampling",
    ),
    (
        lambda b: _native(b)["placeholders"][1].update(name="best"),
        "placeholder_mismatch",
        "calls[0].placeholders[1].name",
    ),
    (lambda b: _sandboxed(b, entry="a b"), "invalid_request", "calls[0].native.entry"),
    (lambda b: _sandboxed(b, timeout_s=61), "invalid_request", "calls[0].native.timeout_s"),
    (lambda b: _sandboxed(b, memory_bytes=1), "invalid_request", "calls[0].native.memory_bytes"),
    (
        lambda b: _sandboxed(b, source="#" * (limits.NATIVE_SOURCE_BYTES + 1)),
        "too_large",
        "calls[0].native.source",
    ),
]


@pytest.mark.parametrize(("change", "kind", "field"), WRONG)
def test_a_mistake_is_named_where_the_client_made_it(change: Change, kind: str, field: str) -> None:
    body = request()
    change(body)
    fault = refusal(body)
    assert (fault.kind.type, fault.field) == (kind, field), fault.message
    for word in ("variable_ids", "list_variable_id", "body_variable_id", "<client>", "<form>"):
        assert word not in fault.message


@pytest.mark.parametrize(
    ("kind", "said", "variable_id", "field"),
    [
        (errors.UNPRODUCED_VARIABLE, "blocks[0].map.list_variable_id", "topics", "blocks[0].map.list"),
        (
            errors.UNPRODUCED_VARIABLE,
            "blocks[0].map.body[0].topic",
            "topic",
            "blocks[0].map.body[0].placeholders[0].semantic_var_id",
        ),
        (errors.UNPRODUCED_VARIABLE, "blocks[0].when", "topics", "blocks[0].when.semantic_var_id"),
        (
            errors.UNPRODUCED_VARIABLE,
            "blocks[0].map.body[0].when",
            "topic",
            "blocks[0].map.body[0].when.semantic_var_id",
        ),
        (
            errors.UNPRODUCED_VARIABLE,
            "blocks[1].loop.carried[0].initial_variable_id",
            "draft",
            "blocks[1].loop.carried[0].initial",
        ),
        (
            errors.UNPRODUCED_VARIABLE,
            "blocks[2].select.from_variable_ids[1]",
            "draft",
            "blocks[2].select.from[1]",
        ),
        (
            errors.DUPLICATE_PRODUCER,
            "blocks[0].line",
            "draft",
            "blocks[0].map.collected[0].semantic_var_id",
        ),
        (
            errors.INVALID_REQUEST,
            "blocks[1].better",
            "final",
            "blocks[1].loop.results[0].semantic_var_id",
        ),
        (errors.DUPLICATE_PRODUCER, "blocks[2].the best", "best", "blocks[2].select.semantic_var_id"),
        (errors.CYCLIC_GRAPH, "blocks[0]", "draft", "blocks[0]"),
        (errors.UNKNOWN_MODEL, "blocks[0].map.body[0].model", "", "blocks[0].map.body[0].model"),
        (errors.UNPRODUCED_VARIABLE, "calls[0].when", "best", "calls[0].when.semantic_var_id"),
        (
            errors.UNPRODUCED_VARIABLE,
            "calls[0].best",
            "best",
            "calls[0].placeholders[0].semantic_var_id",
        ),
        (errors.INVALID_REQUEST, "calls[0].native.kind", "", "calls[0].native.kind"),
        (errors.INVALID_REQUEST, "values[0].variable_id", "b-1-x", "variables[0].semantic_var_id"),
    ],
)
def test_what_the_manager_refuses_is_named_as_the_client_sent_it(
    kind: errors.Kind, said: str, variable_id: str, field: str
) -> None:
    fault = Fault(kind, f"{said} is wrong", field=said, variable_id=variable_id)
    found = locate(fault, CALLS.validate_python(request()))
    assert (found.field, found.message) == (field, f"{field} is wrong")
