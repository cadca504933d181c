"""Bodies: strict JSON, text throughout, and every mistake named by its field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_gateway.bodies import parse
from parrot_runtime import errors
from parrot_runtime.errors import Fault, Kind

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_is_read_as_it_is(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_a_fault(raw: bytes) -> None:
    try:
        parse(raw)
    except Fault as fault:
        assert fault.kind.http == 400  # noqa: PT017 - most bytes are refused, some are not


@pytest.mark.parametrize(
    ("raw", "kind", "field", "says"),
    [
        (b"", errors.INVALID_REQUEST, "body", "line 1"),
        (b"{", errors.INVALID_REQUEST, "body", "line 1, column 2"),
        (b'{"a": NaN}', errors.INVALID_REQUEST, "body", "number"),
        (b'{"a": -Infinity}', errors.INVALID_REQUEST, "body", "number"),
        (b'{"a": 1e999}', errors.INVALID_REQUEST, "body", "number"),
        (b'{"a": ' + b"9" * 5000 + b"}", errors.INVALID_REQUEST, "body", "number"),
        (b"[" * 100_000, errors.INVALID_REQUEST, "body", "deep"),
        (b'{"a":' * 50_000, errors.INVALID_REQUEST, "body", "deep"),
        (b'{"a": "\xff"}', errors.INVALID_TEXT, "body", "byte 7"),
        (b'"\\ud83d"', errors.INVALID_TEXT, "body", "character 0"),
        (b'{"a": "tail \\ud83d"}', errors.INVALID_TEXT, "a", "character 5"),
        (b'{"a": [0, {"b": "\\udc00 head"}]}', errors.INVALID_TEXT, "a[1].b", "U\\+DC00"),
        (
            b'{"calls": [{}, {"prompt": "\\uDBFF\\u0041"}]}',
            errors.INVALID_TEXT,
            "calls[1].prompt",
            "U\\+DBFF",
        ),
        (b'{"x\\ud800": 1}', errors.INVALID_TEXT, "body", "U\\+D800"),
    ],
)
def test_what_is_no_json_text_is_refused_with_its_place(
    raw: bytes, kind: Kind, field: str, says: str
) -> None:
    with pytest.raises(Fault, match=says) as caught:
        parse(raw)
    assert (caught.value.kind, caught.value.field) == (kind, field)


def test_pairs_and_nul_are_text() -> None:
    assert parse(b'{"a": "\\ud83d\\ude00", "b": "pre\\u0000post"}') == {"a": "😀", "b": "pre\0post"}


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_a_body_must_say_that_it_is_json(content_type: str) -> None:
    with pytest.raises(Fault, match="application/json"):
        parse(b"{}", content_type)


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.a+json"]
)
def test_every_spelling_of_json_is_taken(content_type: str) -> None:
    assert parse(b"{}", content_type) == {}
