"""Calls become segments; limits and mistakes are found before the manager is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from parrot_gateway.compiled import Compiled
from parrot_gateway.compiling import (
    INLINE_CALLS,
    INLINE_CHARS,
    compile_calls,
    compiled_calls,
)
from parrot_gateway.events import EVENT_CHARS, _deltas, event_block, offset_of
from parrot_gateway.locating import locate
from parrot_gateway.new_blocks import NewBatch, NewCalls
from parrot_gateway.new_calls import NewCall
from parrot_gateway.problems import invalid, problem_of
from parrot_gateway.sampling import SamplingSettings
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault, Kind
from parrot_runtime.ids import is_id
from parrot_runtime.values.reader import Chunk

CALLS: TypeAdapter[NewBatch | NewCall] = TypeAdapter(NewCalls)
X = {"name": "x", "in_out": "in", "value": "text"}
Y = {"name": "y", "in_out": "out"}


def call(prompt: str = "{{x}}: {{y}}", *placeholders: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A call as a client sends it."""
    return {"prompt": prompt, "placeholders": list(placeholders or (X, Y)), **fields}


def nested(depth: int) -> dict[str, Any]:
    """A JSON object with others within it."""
    found: dict[str, Any] = {}
    for _ in range(depth - 1):
        found = {"a": found}
    return found


def refusal(body: dict[str, Any]) -> Fault:
    """Why a body is refused."""
    try:
        compile_calls(CALLS.validate_python(body))
    except Fault as fault:
        return fault
    except ValidationError as error:
        found = error.errors()
        return invalid([{**first, "loc": ("body", *first["loc"])} for first in found])
    raise AssertionError("it was accepted")


def test_a_template_becomes_segments_and_a_value_a_variable_beside_it() -> None:
    sampling = {"max_tokens": 5, "temperature": 0, "stop": "\n", "seed": -3}
    body = call(
        "Say {{ x }}{{'{{'}}x}}: {{output:y}}",
        {**X, "value": "{{y}}\0", "in_out": "input", "transforms": "strip"},
        {**Y, "sampling": sampling, "semantic_var_id": "out-1"},
        name="f",
        model="m",
    )
    compiled = compile_calls(CALLS.validate_python(body))
    (made,), (value,) = compiled.calls, compiled.values
    assert [segment.WhichOneof("piece") for segment in made.segments] == ["text", "input", "text", "output"]
    assert made.segments[2].text == "{{x}}: "
    assert (value.value, value.name, is_id(value.variable_id)) == ("{{y}}\0", "x", True)
    assert made.segments[1].input.variable_id == value.variable_id
    assert list(made.segments[1].input.transforms) == ["strip"]
    output = made.segments[3].output
    assert (output.variable_id, output.sampling.max_tokens, output.sampling.seed) == ("out-1", 5, -3)
    assert (output.sampling.temperature, list(output.sampling.stop)) == (0, ["\n"])


def test_what_is_not_said_has_its_documented_default() -> None:
    compiled = compile_calls(CALLS.validate_python(call()))
    sampling = compiled.calls[0].segments[-1].output.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (0, 1, 1)
    assert not sampling.HasField("seed")


def test_every_setting_of_a_sampling_reaches_the_manager() -> None:
    settings = {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 1,
        "ignore_eos": True,
        "stop": ["a"],
        "stop_token_ids": [2],
        "presence_penalty": -1.5,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.25,
        "logit_bias": {"50256": -100, "0": 0.5},
        "logprobs": 0,
        "prompt_logprobs": 3,
        "guide": {"json_schema": {"b": [1, "\u6f22"], "a": {}}},
    }
    assert set(settings) == set(SamplingSettings.model_fields)
    compiled = compile_calls(CALLS.validate_python(call("{{x}}: {{y}}", X, {**Y, "sampling": settings})))
    made = compiled.calls[0].segments[-1].output.sampling
    assert {field.name for field, _ in made.ListFields()} == set(settings)
    assert dict(made.logit_bias) == {50256: -100, 0: 0.5}
    assert (made.logprobs, made.prompt_logprobs, list(made.stop_token_ids)) == (0, 3, [2])
    assert made.guide.json_schema == '{"b":[1,"\u6f22"],"a":{}}'
    assert (made.min_p, made.presence_penalty, made.frequency_penalty) == (0.125, -1.5, 1.5)


@pytest.mark.parametrize(
    ("guide", "kind"),
    [
        ({"json_schema": '{"type": "object"}'}, "json_schema"),
        ({"regex": "[0-9]+"}, "regex"),
        ({"grammar": 'root ::= "a"', "choice": None}, "grammar"),
        ({"choice": ["yes", "no"]}, "choice"),
    ],
)
def test_a_guide_is_one_of_four(guide: dict[str, Any], kind: str) -> None:
    body = call("{{x}}: {{y}}", X, {**Y, "sampling": {"guide": guide}})
    made = compile_calls(CALLS.validate_python(body)).calls[0].segments[-1].output.sampling
    assert made.guide.WhichOneof("kind") == kind
    given = guide[kind]
    assert (list(made.guide.choice.texts) if kind == "choice" else getattr(made.guide, kind)) == given


def test_transforms_travel_as_they_are() -> None:
    names = ["regex:(?s)```json\n(.*?)```", 'json:a["b:c"][0]', "split:::-1", "join: \u6f22\0"]
    compiled = compile_calls(
        CALLS.validate_python(call("{{x}}: {{y}}", {**X, "transforms": names}, {**Y, "transforms": names}))
    )
    segments = compiled.calls[0].segments
    assert list(segments[0].input.transforms) == list(segments[-1].output.transforms) == names


def test_guides_and_transforms_count_towards_a_batch() -> None:
    guided = {**Y, "sampling": {"guide": {"regex": "a" * limits.GUIDE_BYTES}}}
    fault = refusal({"calls": [call("{{x}}: {{y}}", X, guided)] * (limits.BATCH_BYTES // limits.GUIDE_BYTES)})
    assert fault.kind is errors.TOO_LARGE
    assert "guides" in fault.message


def test_the_transforms_of_a_call_are_bounded_together_not_those_of_a_batch() -> None:
    def with_holes(count: int) -> dict[str, Any]:
        holes = [{**X, "name": f"x{place}", "transforms": ["strip"] * 16} for place in range(count)]
        return call("".join(f"{{{{x{place}}}}}" for place in range(count)) + "{{y}}", *holes, Y)

    compile_calls(CALLS.validate_python({"calls": [with_holes(16)] * 3}))
    fault = refusal({"calls": [with_holes(16), with_holes(17)]})
    assert (fault.kind, fault.field) == (errors.TOO_LARGE, "calls[1].placeholders[16].transforms")


@pytest.mark.parametrize("spelling", ["in", "input", True])
def test_directions_have_three_spellings(spelling: object) -> None:
    compile_calls(CALLS.validate_python(call("{{x}}: {{y}}", {**X, "in_out": spelling}, Y)))


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        (call("{{x}}: {{y"), errors.INVALID_TEMPLATE, "prompt"),
        (call("{{x}} {{é}}: {{y}}"), errors.INVALID_TEMPLATE, "prompt"),
        (call("{{x}} {{w}}: {{y}}"), errors.PLACEHOLDER_MISMATCH, "prompt"),
        (call("{{x}}"), errors.PLACEHOLDER_MISMATCH, "placeholders[1].name"),
        (call("{{x}}", X), errors.PLACEHOLDER_MISMATCH, "prompt"),
        (call("{{x}} {{y}}", X, X, Y), errors.PLACEHOLDER_MISMATCH, "placeholders[1].name"),
        (call("{{x}} {{y}} {{y}}"), errors.PLACEHOLDER_MISMATCH, "prompt"),
        (call("{{x}}", {**X, "semantic_var_id": "v"}, Y), errors.INVALID_REQUEST, "placeholders[0]"),
        (call("{{x}}", {"name": "x", "in_out": "in"}, Y), errors.INVALID_REQUEST, "placeholders[0]"),
        (call("{{x}}", X, {**Y, "value": ""}), errors.INVALID_REQUEST, "placeholders[1].value"),
        (call("{{x}}", {**X, "sampling": {}}), errors.INVALID_REQUEST, "placeholders[0].sampling"),
        (call("{{x}}", {**X, "transforms": ["no"]}), errors.INVALID_REQUEST, "placeholders[0].transforms[0]"),
        (
            call("{{x}}", X, {**Y, "transforms": ["strip", "regex:("]}),
            errors.INVALID_REQUEST,
            "placeholders[1].transforms[1]",
        ),
        (call("{{x}}", {**X, "transforms": ["strip"] * 17}), errors.TOO_LARGE, "placeholders[0].transforms"),
        (
            call("{{x}}", {**Y, "semantic_var_id": "a.b"}),
            errors.INVALID_REQUEST,
            "placeholders[0].semantic_var_id",
        ),
        (call("{{x}}", {**X, "in_out": "both"}), errors.INVALID_REQUEST, "placeholders[0].in_out"),
        (call("{{x}}", {**X, "in_out": 1}), errors.INVALID_REQUEST, "placeholders[0].in_out"),
        (call("{{x}}", {**X, "more": 1}), errors.INVALID_REQUEST, "placeholders[0].more"),
        (call("{{x}}", {"in_out": "in"}), errors.INVALID_REQUEST, "placeholders[0].name"),
        (call("{{x}}: {{y}}", name=5), errors.INVALID_REQUEST, "name"),
        (call("{{x}}: {{y}}", name="a\nb"), errors.INVALID_TEXT, "name"),
        (call("{{x}}: {{y}}", name="a" * 201), errors.TOO_LARGE, "name"),
        (call("{{x}}: {{y}}", model="a\0"), errors.INVALID_TEXT, "model"),
        (call("{{x}}" * 2000, *[X] * 1025), errors.TOO_LARGE, "placeholders"),
        (call("{{x}}" * 1024 + "{{y}}"), errors.TOO_LARGE, "prompt"),
        ({"calls": []}, errors.INVALID_REQUEST, "calls"),
        ({"calls": [call()] * 4097}, errors.TOO_LARGE, "calls"),
        ({"calls": {}}, errors.INVALID_REQUEST, "calls"),
        ({}, errors.INVALID_REQUEST, "calls"),
        ({"calls": [call(), call("{{")]}, errors.INVALID_TEMPLATE, "calls[1].prompt"),
        ({"calls": [call(), {"prompt": 3, "placeholders": []}]}, errors.INVALID_REQUEST, "calls[1].prompt"),
        (
            {"calls": [call()], "variables": [{"semantic_var_id": "a b", "value": ""}]},
            errors.INVALID_REQUEST,
            "variables[0].semantic_var_id",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_kind_and_field(body: dict[str, Any], kind: Kind, field: str) -> None:
    fault = refusal(body)
    assert (fault.kind, fault.field) == (kind, field), fault.message


BATCH = {
    "calls": [call(), call("{{x}}: {{model}}", X, {**Y, "name": "model"})],
    "variables": [{"semantic_var_id": name, "value": ""} for name in ("a", "b", "a")],
}


@pytest.mark.parametrize(
    ("body", "kind", "said", "field"),
    [
        (BATCH, errors.UNKNOWN_MODEL, "calls[1].model", "calls[1].model"),
        (BATCH, errors.DUPLICATE_PRODUCER, "calls[1].model", "calls[1].placeholders[1].semantic_var_id"),
        (BATCH, errors.UNPRODUCED_VARIABLE, "calls[0].x", "calls[0].placeholders[0].semantic_var_id"),
        (BATCH, errors.CYCLIC_GRAPH, "calls[1]", "calls[1].placeholders"),
        (BATCH, errors.VARIABLE_ALREADY_SET, "", "variables[2].semantic_var_id"),
        (BATCH, errors.SESSION_ENDED, "", ""),
        (call(), errors.UNKNOWN_MODEL, "calls[0].model", "model"),
        (call(), errors.UNPRODUCED_VARIABLE, "calls[0].x", "placeholders[0].semantic_var_id"),
        (call(), errors.CYCLIC_GRAPH, "calls[0]", "placeholders"),
    ],
)
def test_what_the_manager_refuses_is_named_as_the_client_sent_it(
    body: dict[str, Any], kind: Kind, said: str, field: str
) -> None:
    fault = locate(Fault(kind, "no", field=said, variable_id="a"), CALLS.validate_python(body))
    assert (fault.kind, fault.field) == (kind, field)


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": 1 << 63}, "seed"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"best_of": 2}, "best_of"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 10**400}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [1 << 31]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0661": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5_000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"logit_bias": {"5": None}}, "logit_bias[5]"),
        ({"logit_bias": {str(token): 0 for token in range(301)}}, "logit_bias"),
        ({"guide": "json"}, "guide"),
        ({"guide": {}}, "guide"),
        ({"guide": {"regex": None}}, "guide"),
        ({"guide": {"regex": "a", "choice": ["a"]}}, "guide"),
        ({"guide": {"json": {}}}, "guide.json"),
        ({"guide": {"regex": ""}}, "guide.regex"),
        ({"guide": {"grammar": 5}}, "guide.grammar"),
        ({"guide": {"json_schema": []}}, "guide.json_schema"),
        ({"guide": {"json_schema": "{"}}, "guide.json_schema"),
        ({"guide": {"json_schema": nested(limits.SCHEMA_DEPTH + 1)}}, "guide.json_schema"),
        ({"guide": {"json_schema": nested(100_000)}}, "guide.json_schema"),
        ({"guide": {"choice": "yes"}}, "guide.choice"),
        ({"guide": {"choice": []}}, "guide.choice"),
        ({"guide": {"choice": ["a", ""]}}, "guide.choice[1]"),
    ],
)
def test_sampling_out_of_range_is_refused(sampling: dict[str, Any], name: str) -> None:
    fault = refusal(call("{{x}}: {{y}}", X, {**Y, "sampling": sampling}))
    assert fault.kind is errors.INVALID_SAMPLING
    assert fault.field == f"placeholders[1].sampling.{name}"


@pytest.mark.parametrize("char", ["a", "é", "漢", "😀"])
def test_limits_count_bytes_of_utf8(char: str) -> None:
    size = len(char.encode())
    for prompt, value, field, limit in (
        ("{{x}}: {{y}}", char, "placeholders[0].value", limits.VALUE_BYTES),
        (char, "", "prompt", limits.TEMPLATE_BYTES - len("{{x}}: {{y}}")),
    ):
        for over in (0, 1):
            text = char * (limit // size + over)
            prompt_text = prompt if value else text + "{{x}}: {{y}}"
            body = call(prompt_text, {**X, "value": text if value else ""}, Y)
            if over:
                fault = refusal(body)
                assert (fault.kind, fault.field) == (errors.TOO_LARGE, field)
            else:
                compile_calls(CALLS.validate_python(body))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "inline"),
    [
        ({"calls": [call()] * INLINE_CALLS}, True),
        ({"calls": [call()] * (INLINE_CALLS + 1)}, False),
        (call("a" * INLINE_CHARS + "{{x}}{{y}}"), False),
        (
            call(
                "{{x}}: {{y}}.{{z}}",
                X,
                *(
                    {
                        "name": name,
                        "in_out": "out",
                        "sampling": {"guide": {"json_schema": {"a": "b" * 40_000}}},
                    }
                    for name in "yz"
                ),
            ),
            False,
        ),
        (call("{{x}}: {{y}}", X, {**Y, "transforms": ["strip"] * 16}), True),
    ],
)
async def test_what_takes_long_to_compile_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], inline: bool
) -> None:
    threads: list[threading.Thread] = []

    def note(sent: NewBatch | NewCall, key: str = "") -> Compiled:
        threads.append(threading.current_thread())
        return compile_calls(sent, key)

    monkeypatch.setattr("parrot_gateway.compiling.compile_calls", note)
    compiled = await compiled_calls(CALLS.validate_python(body))
    assert len(compiled.calls) == len(body.get("calls", [body]))
    assert (threads == [threading.current_thread()]) is inline


def test_a_batch_is_limited_as_a_whole() -> None:
    value = {**X, "value": "a" * limits.VALUE_BYTES}
    fault = refusal({"calls": [call("{{x}}: {{y}}", value, Y)] * 4 + [call()]})
    assert fault.kind is errors.TOO_LARGE
    assert "batch" in fault.message


def test_a_stop_text_has_a_limit() -> None:
    fault = refusal(call("{{x}}: {{y}}", X, {**Y, "sampling": {"stop": "漢" * 342}}))
    assert fault.kind is errors.TOO_LARGE
    assert fault.field == "placeholders[1].sampling.stop[0]"


def test_a_problem_says_only_what_it_knows() -> None:
    assert problem_of(Fault(errors.ENGINE_LOST, "gone", call_id="c-1", cause_type="engine_error")) == {
        "type": "urn:parrot:problem:engine_lost",
        "title": errors.ENGINE_LOST.title,
        "status": 503,
        "detail": "gone",
        "call_id": "c-1",
        "cause_type": "urn:parrot:problem:engine_error",
        "may_retry": True,
    }


@pytest.mark.parametrize(("event_id", "offset"), [("", 0), ("s/v-1:0", 0), ("s/v-1:12", 12)])
def test_an_event_id_is_an_offset(event_id: str, offset: int) -> None:
    assert offset_of(event_id, "s", "v-1") == offset


@pytest.mark.parametrize(
    "event_id",
    ["abc", "-1", "9999999", "v-1:1", "t/v-1:1", "s/v-2:1", "s/v-1:-1", "s/v-1:", "s/v-1:1 ", "s/v-1:٣"],
)
def test_a_foreign_event_id_is_refused(event_id: str) -> None:
    with pytest.raises(Fault, match="Last-Event-ID"):
        offset_of(event_id, "s", "v-1")


def test_a_long_text_is_cut_into_events_that_join() -> None:
    text = "漢a" * EVENT_CHARS
    blocks = _deltas("v", Chunk(7, text))
    assert len(blocks) == 2
    assert blocks[-1].startswith(b"id: v:" + str(7 + len(text.encode())).encode() + b"\n")


def test_an_event_has_no_line_end_inside() -> None:
    block = event_block("delta", {"text": "a\nb\rc\u2028d\u2029e\x85f\0😀"}).decode()
    assert len(block.splitlines()) == 3
    assert "😀" in block
