"""Conditions: what holds of which text, in a bounded time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_manager.core import schemas
from parrot_manager.core.conditions import Condition, Predicate, UndecidedError, holds

YEAR = {
    "type": "object",
    "properties": {"year": {"type": "integer"}, "note": {"$ref": "#/$defs/note"}},
    "required": ["year"],
    "additionalProperties": False,
    "$defs": {"note": {"type": "string", "pattern": "^[a-z]+$"}},
}


def asked(test: Predicate, operand: str = "", *transforms: str, negate: bool = False) -> Condition:
    """A condition about a variable."""
    return Condition("v", test, operand, transforms, negate)


@pytest.mark.parametrize(
    ("condition", "text", "expected"),
    [
        (asked(Predicate.EQUALS, "yes"), "yes", True),
        (asked(Predicate.EQUALS, "yes"), "yes ", False),
        (asked(Predicate.EQUALS, "yes", "strip", "lower"), " YES\n", True),
        (asked(Predicate.CONTAINS, "needle"), "hay needle hay", True),
        (asked(Predicate.CONTAINS, ""), "", True),
        (asked(Predicate.MATCHES, "a(b)?c"), "xacx", True),
        (asked(Predicate.MATCHES, "^b"), "ab", False),
        (asked(Predicate.EMPTY), "", True),
        (asked(Predicate.EMPTY), " ", False),
        (asked(Predicate.EMPTY, "", "strip"), " \n", True),
        (asked(Predicate.IS_JSON), "null", True),
        (asked(Predicate.IS_JSON), "nul", False),
        (asked(Predicate.JSON_SCHEMA, json.dumps(YEAR)), '{"year": 1969}', True),
        (asked(Predicate.JSON_SCHEMA, json.dumps(YEAR)), "1969", False),
        (asked(Predicate.JSON_SCHEMA, json.dumps(YEAR)), "no JSON", False),
        (asked(Predicate.JSON_SCHEMA, '{"type": "number"}', "json:year"), '{"year": 1}', True),
    ],
)
def test_a_condition_holds_of_what_it_says(condition: Condition, text: str, expected: bool) -> None:
    assert holds(condition, text) is expected
    negated = Condition("v", condition.test, condition.operand, condition.transforms, negate=True)
    assert holds(negated, text) is not expected


@pytest.mark.parametrize("negate", [False, True])
def test_where_a_transform_does_not_apply_nothing_holds(negate: bool) -> None:
    assert not holds(asked(Predicate.EQUALS, "x", "json:a", negate=negate), "no JSON")


def test_what_takes_too_long_is_said_and_not_guessed() -> None:
    with pytest.raises(UndecidedError, match="too long for this pattern"):
        holds(asked(Predicate.MATCHES, "(?:xy){200}"), "x" * 1_000_000)
    with pytest.raises(UndecidedError, match="too long for a JSON schema"):
        holds(asked(Predicate.JSON_SCHEMA, "{}"), json.dumps("x" * schemas.TEXT_CHARS))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"year": 1}, True),
        ({"year": 1, "note": "fine"}, True),
        ({"year": 1, "note": "NOT"}, False),
        ({"year": 1.5}, False),
        ({"note": "fine"}, False),
        ({"year": 1, "more": 1}, False),
    ],
)
def test_a_schema_admits_what_it_describes(value: Any, expected: bool) -> None:
    schemas.check_schema(json.dumps(YEAR))
    assert schemas.admits(json.dumps(YEAR), value) is expected


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"patternProperties": {"^x-": {"type": "string"}}}, {"x-a": 1}, False),
        ({"patternProperties": {"^x-": True}, "additionalProperties": False}, {"x-a": 1}, True),
        ({"patternProperties": {"^x-": True}, "additionalProperties": False}, {"y": 1}, False),
        ({"additionalProperties": {"type": "integer"}}, {"a": "b"}, False),
        ({"uniqueItems": True}, [1, True, "1", [1]], True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        (
            {"$id": "https://x/y", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "null"}}},
            [None],
            True,
        ),
        ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, 2, False),
    ],
)
def test_keywords_of_our_own_doing_mean_what_they_should(schema: Any, value: Any, expected: bool) -> None:
    schemas.check_schema(json.dumps(schema))
    assert schemas.admits(json.dumps(schema), value) is expected


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("[]", "no JSON object"),
        ("{", "no JSON"),
        ('{"type": "text"}', "at #/type: it breaks the rule"),
        ('{"properties": {"a": {"pattern": "(?=x)"}}}', "at #/properties/a/pattern: RE2 refuses"),
        ('{"$ref": "https://example.org/schema"}', "names no schema within this one"),
        ('{"items": {"$ref": "#/$defs/gone"}}', "at #/items: [$]ref names no schema"),
        ('{"$ref": "#/x", "x": {}}', "names no schema within this one"),
        ('{"$schema": "http://json-schema.org/draft-07/schema#"}', "not draft 2020-12"),
        ('{"items": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}', "not supported"),
        ('{"unevaluatedProperties": false}', "not supported"),
        (json.dumps({"const": [[[[]]]]}).replace("[[[[]]]]", "[" * 70 + "]" * 70), "levels deep"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: str, why: str) -> None:
    with pytest.raises(schemas.InvalidSchemaError, match=why):
        schemas.check_schema(schema)


def test_schemas_that_would_never_end_are_given_up() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    for schema in (
        {"$ref": "#"},
        {"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "string"}}},
    ):
        schemas.check_schema(json.dumps(schema))
        with pytest.raises(schemas.TooMuchError):
            schemas.admits(json.dumps(schema), "x")
    many = {"items": {"enum": list(range(5_000))}}
    with pytest.raises(schemas.TooMuchError):
        schemas.admits(json.dumps(many), list(range(5_000)))


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=2), st.lists, max_leaves=8)
)
def test_items_are_unique_when_python_says_so(value: Any) -> None:
    items = value if isinstance(value, list) else [value, value]
    expected = len({json.dumps(item) for item in items}) == len(items)
    assert schemas.admits('{"uniqueItems": true}', items) is expected
