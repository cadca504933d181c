"""A response's events: the same whatever pieces its text comes in; a stream goes on after any of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_gateway.openai.responses.asked import NewResponse
from parrot_gateway.openai.responses.calling import toolbox_of
from parrot_gateway.openai.responses.ids import ResponseId, response_of_item
from parrot_gateway.openai.responses.items import stored, with_ids
from parrot_gateway.openai.responses.narration import Event, Narrator
from parrot_gateway.openai.responses.reading import Teller
from parrot_gateway.openai.responses.record import Record, record_of
from parrot_gateway.openai.responses.resource import Status, Told
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

RESPONSE = ResponseId("s0a-0123456789abcdef", "00112233445566aa")
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CALLS = (
    "Let me look.\n"
    '<tool_call>{"name": "look", "arguments": {"at": "sea \\u00e9"}}</tool_call>\n'
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
)
TEXTS = [
    "",
    "x",
    "Hello, wörld 😀.",
    " lead and trail \n",
    CALLS,
    '{"name": "look", "arguments": {"a": [1, 2]}}',
]


def recorded(**asked: Any) -> Record:
    """The record of a request."""
    sent = NewResponse.model_validate({"input": "hi", **asked})
    return record_of(
        sent,
        items=stored("hi"),
        history=[],
        toolbox=toolbox_of(sent),
        output_variable="out",
        own=True,
    )


def told(status: Status = "in_progress", *, failure: Fault | None = None, **asked: Any) -> Told:
    """A response."""
    usage = common_pb2.Usage(prompt_tokens=3, output_tokens=2)
    record = recorded(tools=[TOOL], **asked)
    return Told(RESPONSE, record, 1_700_000_000, "m", status, 1_700_000_001, (), usage, failure)


def narrated(pieces: Iterable[str], end: Told) -> list[Event]:
    """All events of a text that comes in pieces."""
    narrator = Narrator(replace(end, status="in_progress", usage=None, failure=None))
    teller = Teller(narrator, end.record)
    made = list(narrator.begin())
    for piece in pieces:
        made += teller.text(piece)
    return [*made, *teller.end(end)]


def in_characters(events: Iterable[Event]) -> list[tuple[int, str, Any]]:
    """Events with each delta taken apart, a character at a time."""
    made: list[tuple[int, str, Any]] = []
    for event in events:
        if event.kind.endswith(".delta"):
            chars = event.members["delta"]
            made += [(event.first + place, event.kind, char) for place, char in enumerate(chars)]
        else:
            made.append((event.last, event.kind, json.dumps(event.members, sort_keys=True)))
    return made


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text in pieces."""
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 300)), st.booleans())
def test_events_do_not_depend_on_the_pieces_a_text_comes_in(
    text: str, places: list[int], background: bool
) -> None:
    end = told("completed", background=background)

    pieced = in_characters(narrated(cut(text, places), end))

    assert pieced == in_characters(narrated([text], end))
    assert [number for number, _, _ in pieced] == list(range(len(pieced)))


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 300)), st.integers(-1, 200))
def test_a_stream_goes_on_after_any_number_without_a_gap_or_a_repeat(
    text: str, places: list[int], after: int
) -> None:
    events = narrated(cut(text, places), told("completed"))

    rest = [left for event in events if (left := event.after(after)) is not None]

    assert in_characters(rest) == in_characters(events)[after + 1 :]


def test_what_is_said_and_the_functions_called_are_items_in_their_order() -> None:
    events = narrated([CALLS], told("completed"))

    final = events[-1].data
    assert final["type"] == "response.completed"
    said, first, second = final["response"]["output"]
    assert said["content"][0]["text"] == "Let me look."
    assert (first["name"], json.loads(first["arguments"])) == ("look", {"at": "sea é"})
    assert second["arguments"] == "{}"
    assert len({said["id"], first["id"], second["id"]}) == 3
    assert first["call_id"] != second["call_id"]
    assert {item["status"] for item in final["response"]["output"]} == {"completed"}
    for index, item in enumerate(final["response"]["output"]):
        of_it = [event.members for event in events if event.members.get("output_index") == index]
        assert of_it[-1]["item"] == item
        assert {members["item_id"] for members in of_it if "item_id" in members} == {item["id"]}


def test_a_text_that_broke_off_leaves_its_last_item_incomplete() -> None:
    events = narrated([CALLS[:70]], told("incomplete"))

    final = events[-1].data
    assert final["type"] == "response.incomplete"
    assert final["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in final["response"]["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize("text", ["", "some text", CALLS])
def test_a_failed_response_is_never_told_as_finished(text: str) -> None:
    failure = Fault(errors.ENGINE_LOST, "the engine died")

    kinds = [event.kind for event in narrated([text], told("failed", failure=failure))]

    assert kinds[-1] == "response.failed"
    assert "response.completed" not in kinds
    assert "response.output_text.done" not in kinds or text == CALLS


def test_an_interruption_takes_no_number_of_the_responses() -> None:
    end = told("completed")
    narrator = Narrator(replace(end, status="in_progress"))
    teller = Teller(narrator, end.record)
    before = [*narrator.begin(), *teller.text("Hello.")]

    broken = narrator.interrupted({"message": "the server is stopping"})

    assert broken.data["sequence_number"] == before[-1].last
    assert next(iter(teller.text("!"))).first == before[-1].last + 1


def test_a_function_that_had_to_be_called_gets_all_of_the_text() -> None:
    choice = {"type": "function", "name": "look"}
    events = narrated(['{"at"', ": 1}"], told("completed", tool_choice=choice))

    assert [event.kind for event in events[2:-1]] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


def test_a_background_response_is_queued_until_it_says_something() -> None:
    kinds = [event.kind for event in narrated(["x"], told("completed", background=True))]

    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]


def test_ids_name_the_response_wherever_they_are_read() -> None:
    assert ResponseId.parse(str(RESPONSE)) == RESPONSE
    assert response_of_item(RESPONSE.input_id(3)) == RESPONSE
    assert response_of_item(RESPONSE.output_id("fc", 12)) == RESPONSE
    assert [item["id"] for item in with_ids(stored("hi"), RESPONSE)] == [RESPONSE.input_id(0)]


@pytest.mark.parametrize("text", ["", "resp_", f"{RESPONSE}0", str(RESPONSE).upper(), "resp_zz" + "0" * 32])
def test_what_is_no_id_of_ours_names_no_response(text: str) -> None:
    assert ResponseId.parse(text) is None


def test_a_record_reads_as_it_was_written_and_nothing_else_does() -> None:
    record = recorded(
        metadata={"a": "b"}, text={"format": {"type": "json_schema", "name": "n", "schema": {}}}
    )

    assert Record.read(record.to_text(), RESPONSE) == record
    for text in ("", "[]", "{}", '{"echo": {}}', "[" * 100_000):
        with pytest.raises(Fault) as refused:
            Record.read(text, RESPONSE)
        assert refused.value.kind is errors.NOT_FOUND
