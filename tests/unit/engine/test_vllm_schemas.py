"""What a guide of a JSON schema lets through can be read as JSON, and is what the schema says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parrot_engine.backends.vllm.schemas import MOST_CHARS, MOST_STRINGS, readable

pytestmark = pytest.mark.vllm


def accepts(schema: Any, text: str) -> bool:
    """Whether xgrammar takes a text for one that the schema, as it is given to it, allows."""
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string

    grammar = xgrammar.Grammar.from_json_schema(readable(json.dumps(schema)), any_whitespace=False)
    return bool(_is_grammar_accept_string(grammar, text))


@pytest.mark.parametrize("bounds", [{}, {"maxLength": 4}, {"minLength": 1}, {"minLength": 1, "maxLength": 4}])
@pytest.mark.parametrize("control", [chr(code) for code in range(32)])
def test_no_string_holds_a_control_character(bounds: dict[str, int], control: str) -> None:
    assert not accepts({"type": "string", **bounds}, f'"a{control}"')


@pytest.mark.parametrize(
    ("text", "fits"),
    [("", False), ("a", True), ("abcd", True), ("abcde", False), ("é☃😀\x7f", True), (" ", True)],
)
def test_a_string_is_as_long_as_the_schema_says(text: str, fits: bool) -> None:
    schema = {"type": "string", "minLength": 1, "maxLength": 4}
    assert accepts(schema, f'"{text}"') == fits


@pytest.mark.parametrize(
    ("spelled", "fits"),
    [
        (b"\xed\x9f\xbf", True),
        (b"\xed\xa0\x80", False),
        (b"\xed\xbf\xbf", False),
        (b"\xee\x80\x80", True),
        (b"\xf4\x8f\xbf\xbf", True),
        (b"\xf4\x90\x80\x80", False),
    ],
)
def test_what_is_no_character_is_not_taken_for_one(spelled: bytes, fits: bool) -> None:
    import xgrammar

    schema = readable(json.dumps({"type": "string", "maxLength": 1}))
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(["</s>"]))
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
    assert matcher.accept_string(b'"' + spelled + b'"') == fits


def test_a_string_of_a_least_length_has_no_greatest() -> None:
    assert accepts({"type": "string", "minLength": 2}, '"' + "long " * 100 + '"')
    assert not accepts({"type": "string", "minLength": 2}, '"a"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 9, "pattern": "a+"},
        {"type": "string", "maxLength": 9, "format": "date"},
        {"const": {"type": "string", "maxLength": 9}},
        {"enum": [{"type": "string", "maxLength": 9}], "default": {"type": "string", "minLength": 1}},
        {"type": "object", "properties": {"type": {"type": "integer"}, "maxLength": {"type": "integer"}}},
        {"type": ["string", "null"]},
        True,
    ],
)
def test_whatever_has_rules_of_its_own_or_is_data_stays(schema: Any) -> None:
    assert json.loads(readable(json.dumps(schema))) == schema


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[" * 900 + "]" * 900,
        '{"type": "string", "maxLength": "many"}',
        '{"type": "string", "maxLength": null, "minLength": 1}',
        '{"type": "string", "minLength": 1e999}',
    ],
)
def test_what_is_no_schema_is_left_for_others_to_refuse(text: str) -> None:
    assert json.loads(readable(text)) == json.loads(text) if text.endswith("]") else readable(text) == text


def test_what_would_take_long_to_compile_stays() -> None:
    long = {"type": "string", "maxLength": MOST_CHARS + 1}
    assert json.loads(readable(json.dumps(long))) == long
    many = {"anyOf": [{"type": "string", "maxLength": length} for length in range(1, MOST_STRINGS + 3)]}
    assert [("pattern" in one) for one in json.loads(readable(json.dumps(many)))["anyOf"]] == [
        *[True] * MOST_STRINGS,
        *[False] * 2,
    ]


def test_strings_are_found_wherever_they_are() -> None:
    bounded = {"type": "string", "maxLength": 2}
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": bounded},
            "b": {"anyOf": [bounded, {"$ref": "#/$defs/c"}]},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"c": {"type": "integer"}},
    }
    assert "maxLength" not in readable(json.dumps(schema))
    assert accepts(schema, '{"a": ["xy"], "b": "z"}')
    assert not accepts(schema, '{"a": ["xyz"], "b": "z"}')
    assert not accepts(schema, '{"a": ["x\x01"], "b": "z"}')
