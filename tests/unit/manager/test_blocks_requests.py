"""What is wrong with a graph that unfolds is told when it is submitted: what, where, and how to mend it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from tests.support.machine import SESSION, TENANT, Rig
from tests.support.manager import call

from parrot_manager import requests
from parrot_manager.block_requests import with_plan
from parrot_manager.core import admission
from parrot_manager.core.blocks.definitions import Loop, Map, Select
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.submissions import NewValue
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import limits
from parrot_runtime.errors import Fault

ROOT = Path(__file__).parents[3]
Change = Callable[[pb.SubmitCallsRequest], object]


def request() -> pb.SubmitCallsRequest:
    """A batch with one block of each kind: a map, a loop, a selection."""
    each = [json_format.MessageToDict(call("each", ["item", "outer"], ["loud"]))]
    again = [
        json_format.MessageToDict(call("write", ["draft"], ["better"])),
        json_format.MessageToDict(call("judge", ["better"], ["verdict"])),
    ]
    unfolding: dict[str, Any] = {
        "calls": [json_format.MessageToDict(call("list", [], ["topics"]))],
        "values": [{"variableId": "outer", "value": "x"}],
        "blocks": [
            {
                "name": "each topic",
                "map": {
                    "listVariableId": "topics",
                    "form": {"jsonArray": True},
                    "itemVariableId": "item",
                    "indexVariableId": "place",
                    "body": each,
                    "collected": [{"bodyVariableId": "loud", "variableId": "all", "name": "all"}],
                },
            },
            {
                "loop": {
                    "body": again,
                    "carried": [
                        {
                            "bodyVariableId": "draft",
                            "initialVariableId": "outer",
                            "nextVariableId": "better",
                        }
                    ],
                    "until": {"variableId": "verdict", "contains": "good"},
                    "maxRounds": 3,
                    "results": [{"bodyVariableId": "better", "variableId": "best", "name": "best"}],
                },
                "when": {"variableId": "outer", "matches": "x+"},
            },
            {"select": {"fromVariableIds": ["best", "all"], "variableId": "end", "name": "end"}},
        ],
    }
    return json_format.ParseDict(unfolding, pb.SubmitCallsRequest())


def admitted(message: pb.SubmitCallsRequest) -> CallsAccepted:
    """What a manager with an open session makes of a batch."""
    rig = Rig()
    rig.open()
    found = requests.parse(message)
    return admission.admit_calls(
        rig.machine.state, TENANT, SESSION, found.calls, found.values, now_ms=1, blocks=found.blocks
    )


def test_blocks_join_the_graph_with_what_they_read_and_make() -> None:
    accepted = admitted(request())
    unfolding, again, choice = accepted.blocks
    assert [edge.variable_id for edge in unfolding.inputs] == ["topics", "outer"]
    assert [edge.variable_id for edge in again.inputs] == ["outer"]
    assert [edge.variable_id for edge in choice.inputs] == ["best", "all"]
    assert [block.output_ids for block in accepted.blocks] == [("all",), ("best",), ("end",)]
    assert again.when is not None
    made = {variable.id: variable.producer_block_id for variable in accepted.variables}
    assert (made["all"], made["best"], made["topics"]) == (unfolding.id, again.id, "")
    assert accepted.calls[0].order < unfolding.order < choice.order
    assert again.order < choice.order


def test_a_block_is_read_back_from_its_spec_as_it_was() -> None:
    paths = re.compile("path='[^']*'")
    for block, kind in zip(admitted(request()).blocks, (Map, Loop, Select), strict=True):
        assert isinstance(block.plan, kind)
        again = with_plan(replace(block, plan=None, when=None))
        assert again.when == block.when
        assert paths.sub("", repr(again.plan)) == paths.sub("", repr(block.plan))


def test_bodies_are_sorted_and_their_names_are_their_own() -> None:
    message = request()
    body = message.blocks[1].loop.body
    first = pb.NewCall()
    first.CopyFrom(body[0])
    body[0].CopyFrom(body[1])
    body[1].CopyFrom(first)
    message.blocks[0].map.body[0].segments[-1].output.variable_id = "topics"
    message.blocks[0].map.collected[0].body_variable_id = "topics"
    unfolding, again, _ = admitted(message).blocks
    assert isinstance(again.plan, Loop)
    assert again.plan.order == (1, 0)
    assert [edge.variable_id for edge in unfolding.inputs] == ["topics", "outer"]


def _map(message: pb.SubmitCallsRequest) -> pb.Map:
    return message.blocks[0].map


def _loop(message: pb.SubmitCallsRequest) -> pb.Loop:
    return message.blocks[1].loop


WRONG: list[tuple[Change, str, str, str]] = [
    (lambda m: m.blocks[0].ClearField("map"), "invalid_block", "blocks[0]", "give map, loop or select"),
    (lambda m: _map(m).ClearField("form"), "invalid_block", "blocks[0].map.form", "json_array or lines"),
    (lambda m: _map(m).ClearField("body"), "invalid_block", "blocks[0].map.body", "is empty"),
    (lambda m: _map(m).ClearField("collected"), "invalid_block", "blocks[0].map.collected", "nothing comes"),
    (
        lambda m: setattr(_map(m), "index_variable_id", "item"),
        "invalid_block",
        "blocks[0].map.index_variable_id",
        "differ from one another",
    ),
    (
        lambda m: setattr(_map(m), "item_variable_id", "loud"),
        "duplicate_producer",
        "blocks[0].map.body[0].loud",
        "blocks[0].map.item_variable_id gives it",
    ),
    (
        lambda m: setattr(_map(m), "item_variable_id", "no id"),
        "invalid_request",
        "blocks[0].map.item_variable_id",
        "1 to 64 of",
    ),
    (
        lambda m: setattr(_map(m).collected[0], "body_variable_id", "quiet"),
        "invalid_block",
        "blocks[0].map.collected[0].body_variable_id",
        "no call of the body makes; they make: loud",
    ),
    (lambda m: setattr(_map(m), "max_items", 1001), "invalid_block", "blocks[0].map.max_items", "1 to 1000"),
    (
        lambda m: setattr(_map(m), "list_variable_id", "gone"),
        "unproduced_variable",
        "blocks[0].map.list_variable_id",
        "which no call produces and nobody has set",
    ),
    (
        lambda m: setattr(_map(m).body[0].segments[2].input, "variable_id", "gone"),
        "unproduced_variable",
        "blocks[0].map.body[0].outer",
        "'gone'",
    ),
    (
        lambda m: setattr(_map(m).collected[0], "variable_id", "topics"),
        "duplicate_producer",
        "blocks[0].all",
        "calls[0] (list) gives it its value already",
    ),
    (
        lambda m: setattr(_map(m).collected[0], "variable_id", "b-1-x"),
        "invalid_request",
        "blocks[0].all",
        "take another one",
    ),
    (
        lambda m: setattr(_map(m), "list_variable_id", "all"),
        "cyclic_graph",
        "blocks[0]",
        "blocks[0] (each topic) waits for 'all'",
    ),
    (
        lambda m: m.calls[0].segments.append(call("x", ["end"], ["y"]).segments[1]),
        "cyclic_graph",
        "",
        "wait for one another",
    ),
    (lambda m: setattr(_loop(m), "max_rounds", 0), "invalid_block", "blocks[1].loop.max_rounds", "1 to 100"),
    (lambda m: _loop(m).ClearField("until"), "invalid_block", "blocks[1].loop.until", "what must hold"),
    (
        lambda m: setattr(_loop(m).until, "variable_id", "draft"),
        "invalid_block",
        "blocks[1].loop.until.variable_id",
        "they make: better, verdict",
    ),
    (
        lambda m: setattr(_loop(m).carried[0], "next_variable_id", "outer"),
        "invalid_block",
        "blocks[1].loop.carried[0].next_variable_id",
        "no call of the body makes",
    ),
    (
        lambda m: setattr(_loop(m).carried[0], "initial_variable_id", "gone"),
        "unproduced_variable",
        "blocks[1].loop.carried[0].initial_variable_id",
        "'gone'",
    ),
    (
        lambda m: _loop(m).carried.append(_loop(m).carried[0]),
        "invalid_block",
        "blocks[1].loop.carried[1].body_variable_id",
        "as is blocks[1].loop.carried[0]",
    ),
    (
        lambda m: setattr(_loop(m).body[0].segments[1].input, "variable_id", "verdict"),
        "cyclic_graph",
        "blocks[1].loop.body[0]",
        "waits for 'verdict' of blocks[1].loop.body[1]",
    ),
    (
        lambda m: setattr(_loop(m).until, "matches", "(a"),
        "invalid_request",
        "blocks[1].loop.until.matches[0]",
        "RE2 refuses",
    ),
    (
        lambda m: setattr(_loop(m).until, "json_schema", '{"type": 1}'),
        "invalid_request",
        "blocks[1].loop.until.json_schema",
        "is no JSON schema: at #/type",
    ),
    (
        lambda m: setattr(_loop(m).until, "equals", "x" * (limits.CONDITION_BYTES + 1)),
        "too_large",
        "blocks[1].loop.until.equals",
        "16,384 bytes",
    ),
    (lambda m: m.blocks[1].when.ClearField("matches"), "invalid_request", "blocks[1].when", "asks nothing"),
    (
        lambda m: m.blocks[1].when.transforms.append("no:thing"),
        "invalid_request",
        "blocks[1].when.transforms[0]",
        "there is no transform",
    ),
    (
        lambda m: setattr(m.blocks[1].when, "variable_id", "gone"),
        "unproduced_variable",
        "blocks[1].when",
        "'gone'",
    ),
    (
        lambda m: m.blocks[2].select.ClearField("from_variable_ids"),
        "invalid_block",
        "blocks[2].select.from_variable_ids",
        "is empty",
    ),
    (
        lambda m: m.blocks[2].select.from_variable_ids.extend(["all"] * 64),
        "too_large",
        "blocks[2].select.from_variable_ids",
        "64 variables",
    ),
    (
        lambda m: m.calls[0].when.CopyFrom(pb.Condition(variable_id="gone", empty=True)),
        "unproduced_variable",
        "calls[0].when",
        "'gone'",
    ),
    (
        lambda m: m.calls[0].when.CopyFrom(pb.Condition(variable_id="end", empty=True)),
        "cyclic_graph",
        "",
        "wait for one another",
    ),
    (lambda m: m.blocks.extend([m.blocks[2]] * 254), "too_large", "blocks", "256 blocks"),
]


@pytest.mark.parametrize(("change", "kind", "field", "why"), WRONG)
def test_what_is_wrong_is_told(change: Change, kind: str, field: str, why: str) -> None:
    message = request()
    change(message)
    with pytest.raises(Fault) as caught:
        admitted(message)
    assert caught.value.kind.type == kind
    assert why in caught.value.message
    if field:
        assert caught.value.field == field


def test_a_body_with_many_calls_may_be_there_less_often() -> None:
    message = request()
    for place in range(limits.BODY_CALLS - 1):
        _map(message).body.append(call("more", [], [f"v{place}"]))
    (unfolding, *_) = admitted(message).blocks
    assert isinstance(unfolding.plan, Map)
    assert unfolding.plan.max_items == limits.BLOCK_CALLS // limits.BODY_CALLS
    _map(message).body.append(call("more", [], ["last"]))
    with pytest.raises(Fault, match="64 calls"):
        admitted(message)


def test_the_schemas_of_a_batch_are_bounded_together() -> None:
    message = request()
    for place in range(5):
        made = call("f", [], [f"f{place}"])
        schema = json_schema(place, 15_000)
        made.when.CopyFrom(pb.Condition(variable_id="outer", json_schema=schema))
        message.calls.append(made)
    with pytest.raises(Fault, match="bytes of schemas in a request"):
        admitted(message)


def test_a_client_can_not_take_the_ids_of_instances() -> None:
    rig = Rig()
    rig.open()
    value = NewValue("b-1-0-item", "", b"x")
    with pytest.raises(Fault, match="take another one"):
        admission.admit_value(rig.machine.state, TENANT, SESSION, value, 1)


def json_schema(place: int, size: int) -> str:
    """A schema of about so many bytes."""
    return f'{{"const": "{place}{"x" * size}"}}'
