"""Tools: what a model is told of them, what it must write, and how what it wrote is read, as it comes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from parrot_gateway.openai.chat_answer import Call, read_whole
from parrot_gateway.openai.members import Tool, ToolChoice
from parrot_gateway.openai.tool_reader import (
    HELD_CHARS,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Said,
    ToolReader,
)
from parrot_gateway.openai.toolbox import Toolbox
from parrot_runtime import errors
from parrot_runtime.errors import Fault

CHOICE: TypeAdapter[ToolChoice] = TypeAdapter(ToolChoice)
PLACE = {"$defs": {"at": {"type": "string"}}, "type": "object", "properties": {"at": {"$ref": "#/$defs/at"}}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": PLACE | {"required": ["at"]}}}
WAIT = {"type": "function", "function": {"name": "wait", "description": "Waits."}}
NAMES = ("look", "wait")

TEXTS = (
    "Just text, 1 < 2. \n",
    'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "a\\"}b"}}\n</tool_call>\n'
    '<tool_call>{"arguments": {"s": [1, {"x": 2}]}, "name": "wait"}</tool_call>',
    '{"name": "look", "parameters": {"at": "here"}}',
    '[{"name": "wait", "arguments": {}}, {"name": "look", "arguments": "{\\"at\\": \\"x\\"}"}]',
    '{"tool_calls": [{"name": "wait"}]}',
    '{"title": "no call", "name": "look"}',
    "<tool_call> none </tool_call><tool_call",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> said',
    'Before <tool_call>{"name": "look", "arguments": {"at": "cut o',
    '<tool_call>{"name": "look", "arguments": {"at": 1}} oops {{',
    " [1, 2] ",
    "",
)


def toolbox(choice: Any = None, **options: Any) -> Toolbox:
    """A box with both tools."""
    tools = [Tool.model_validate(tool) for tool in (LOOK, WAIT)]
    return Toolbox.of(tools, None if choice is None else CHOICE.validate_python(choice), **options)


def joined(events: list[Event]) -> list[Event]:
    """With neighbours of one kind made one."""
    made: list[Event] = []
    for event in events:
        last = made[-1] if made else None
        if isinstance(event, Said) and isinstance(last, Said):
            made[-1] = Said(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            made[-1] = CallArguments(event.index, last.text + event.text)
        else:
            made.append(event)
    return made


def read(text: str, cuts: list[int] = []) -> list[Event]:  # noqa: B006 - never changed
    """What a text tells when it comes in pieces."""
    reader, events = ToolReader(NAMES), list[Event]()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += reader.feed(text[start:end])
    return joined(events + reader.finish())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_told_does_not_depend_on_the_pieces(data: st.DataObject) -> None:
    alphabet = st.text('<>/tol_ca{}[]":,name \\x', max_size=30)
    text = data.draw(
        st.sampled_from(TEXTS) | alphabet | st.tuples(st.sampled_from(TEXTS), alphabet).map("".join)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    assert read(text, cuts) == read(text)


@settings(max_examples=300, deadline=None)
@given(st.text('<>/tol_ca{}[]":,name \\x\n', max_size=60))
def test_text_without_a_call_is_said_unchanged(text: str) -> None:
    assert "".join(event.text for event in read(text) if isinstance(event, Said)) == text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=3)
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["tags", "list", "wrapper"]),
)
def test_calls_are_read_as_they_were_written(calls: list[tuple[str, dict[str, str]]], form: str) -> None:
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    text = {
        "tags": "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in written),
        "list": f"[{', '.join(written)}]",
        "wrapper": f'{{"tool_calls": [{",".join(written)}]}}',
    }[form]
    said, found = read_whole(toolbox(), text)
    assert said == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


def test_every_form_is_told_apart_from_text() -> None:
    told = {text: read(text) for text in TEXTS}
    assert told[TEXTS[1]] == [
        Said("Let me see."),
        CallBegun(0, "look"),
        CallArguments(0, '{"at": "a\\"}b"}'),
        CallEnded(0),
        CallBegun(1, "wait"),
        CallArguments(1, '{"s": [1, {"x": 2}]}'),
        CallEnded(1),
    ]
    assert told[TEXTS[3]][-2:] == [CallArguments(1, '{"at": "x"}'), CallEnded(1)]
    assert told[TEXTS[4]] == [CallBegun(0, "wait"), CallArguments(0, "{}"), CallEnded(0)]
    for place in (0, 5, 6, 7, 10):
        assert told[TEXTS[place]] == [Said(TEXTS[place])]
    assert told[TEXTS[8]][1:] == [CallBegun(0, "look"), CallArguments(0, '{"at": "cut o'), CallEnded(0)]


def test_arguments_are_told_before_their_end_is_there() -> None:
    reader = ToolReader(NAMES)
    assert reader.feed('<tool_call>{"name": "look", "arguments": {"at": "lo') == [
        CallBegun(0, "look"),
        CallArguments(0, '{"at": "lo'),
    ]
    assert reader.feed("ng") == [CallArguments(0, "ng")]


@pytest.mark.parametrize("begin", ["", "<tool_call>"])
def test_a_call_whose_name_never_comes_is_text(begin: str) -> None:
    text = begin + '{"arguments": "' + "<tool_call>{" * 20_000
    reader = ToolReader(NAMES)
    assert reader.feed(text) != []
    assert read(text) == [Said(text)]


def test_json_that_is_no_call_is_not_held_back() -> None:
    assert ToolReader(NAMES).feed('{"title": "a long') == [Said('{"title": "a long')]
    assert ToolReader(NAMES).feed('{"name": [') == [Said('{"name": [')]


@pytest.mark.parametrize("depth", [3, 2_000, 20_000])
@pytest.mark.parametrize("nest", ["[]", "{}"])
def test_a_name_however_deep_is_no_name(depth: int, nest: str) -> None:
    deep = nest[0] * depth + nest[1] * depth
    for begin in ("", "<tool_call>"):
        text = f'{begin}{{"name": {deep}, "arguments": {{}}}}'
        assert read(text) == [Said(text)]
    again = f'{{"name": "look", "name": {deep}}}'
    assert read(again) == [CallBegun(0, "look"), CallEnded(0)]
    other = f'{{"type": {deep}, "id": {deep}, "name": "look", "arguments": {{}}}}'
    if len(other) < HELD_CHARS:
        assert read(other) == [CallBegun(0, "look"), CallArguments(0, "{}"), CallEnded(0)]


def test_a_named_function_gets_all_that_is_written() -> None:
    box = toolbox({"type": "function", "function": {"name": "look"}})
    assert (box.mode, box.schema) == ("named", LOOK["function"]["parameters"])  # type: ignore[index]
    assert "Call the function look" in box.instructions
    assert read_whole(box, '{"at": "x"}') == ("", [Call("look", '{"at": "x"}')])


@pytest.mark.parametrize("several", [True, False])
def test_required_calls_are_a_list_by_their_schema(several: bool) -> None:
    box = toolbox("required", several=several)
    schema = box.schema
    assert schema is not None
    one, bad = {"name": "look", "arguments": {"at": "x"}}, {"name": "look", "arguments": {"at": 1}}
    jsonschema.validate([one], schema)
    for wrong in ([], [bad], [{"name": "other", "arguments": {}}], one):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    twice = [one, {"name": "wait", "arguments": {}}]
    if several:
        jsonschema.validate(twice, schema)
        assert len(read_whole(box, json.dumps(twice))[1]) == 2
    else:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(twice, schema)


def test_a_format_and_tools_are_one_schema_of_which_either_may_be_written() -> None:
    text = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
    box = toolbox("auto", text_schema=text)
    assert box.schema is not None
    for good in ({"n": 1}, {"tool_calls": [{"name": "wait", "arguments": {}}]}):
        jsonschema.validate(good, box.schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"n": "one"}, box.schema)
    assert read_whole(box, '{"n": 1}') == ('{"n": 1}', [])
    assert read_whole(box, '{"tool_calls": [{"name": "wait", "arguments": {}}]}') == (
        "",
        [Call("wait", "{}")],
    )


def test_the_model_is_told_of_the_tools_it_may_use_and_of_no_others() -> None:
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "wait"}}]},
    }
    box = toolbox(allowed)
    assert box.mode == "auto"
    assert '"name": "wait"' in box.instructions
    assert "look" not in box.instructions
    none = toolbox("none")
    assert (none.instructions, none.schema) == ("", None)
    assert read_whole(none, TEXTS[1])[0] == TEXTS[1]


def test_one_answer_may_be_kept_to_one_call() -> None:
    said, calls = read_whole(toolbox("auto", several=False), TEXTS[1])
    assert (said, len(calls)) == ("Let me see.", 1)


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([LOOK, LOOK], None, "tools[1].function.name"),
        ([LOOK], {"type": "function", "function": {"name": "other"}}, "tool_choice"),
        (None, "required", "tool_choice"),
    ],
)
def test_tools_that_do_not_fit_are_refused(tools: Any, choice: Any, field: str) -> None:
    given_tools = None if tools is None else [Tool.model_validate(tool) for tool in tools]
    with pytest.raises(Fault) as refused:
        Toolbox.of(given_tools, None if choice is None else CHOICE.validate_python(choice))
    assert (refused.value.kind, refused.value.field) == (errors.INVALID_REQUEST, field)
