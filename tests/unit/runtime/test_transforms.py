"""Transforms: one textual form, refused when it is none, bounded whatever the text and the pattern."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parrot_runtime import errors, limits, transforms
from parrot_runtime.errors import Fault
from parrot_runtime.transforms import InvalidTransformError, NotApplicableError, TransformChecker

scalars = st.text(st.characters(exclude_categories=["Cs"]))
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=4),
    max_leaves=12,
)
SECRET = "sesame"


@pytest.mark.parametrize(
    ("text", "names", "result"),
    [
        (" \u2003a \n", ["strip"], "a"),
        (" \n\n a \nb", ["first_line"], " a "),
        ("ÀŸ", ["lower"], "àÿ"),
        ("straße", ["upper"], "STRASSE"),
        ("a", [], "a"),
        ("a,b,,c", ["split:,:2"], ""),
        ("a,b,,c", ["split:,:-1"], "c"),
        ("a::b", ["split::::1"], "b"),
        ("a\nb", ["split:\n:0"], "a"),
        ("no separator", ["split:,:0"], "no separator"),
        ("aaa", ["split:aa:-1"], ""),
        ("x = 12, y = 7", [r"regex:y = (\d+)"], "7"),
        ("x = 12, y = 7", [r"regex:(x) = (?P<value>\d+)"], "12"),
        ("x = 12, y = 7", [r"regex:\d+"], "12"),
        ("漢😀\0b", [r"regex:(?s)😀(.*)$"], "\0b"),
        ("漢", [r"regex:\C\C\C"], "漢"),
        ('{"a":{"b":[{"c":"漢"}]}}', ["json:a.b[0].c"], "漢"),
        ('[1,[2,"\\u00e9"]]', ["json:[-1]"], '[2,"é"]'),
        ('{"a.b":{"":null}}', ['json:["a.b"][""]'], "null"),
        (' {"a": 1.50, "b": true} ', ["json:"], '{"a":1.5,"b":true}'),
        ('["a", 1, {"b": null}]', ["join: | "], 'a | 1 | {"b":null}'),
        ('["a","b"]', ["join:"], "ab"),
        ("[]", ["join:, "], ""),
        (
            'Sure!\n```json\n{"n": [" a "]}\n```',
            ["regex:(?s)```json\n(.*?)```", "json:n", "join:", "strip"],
            "a",
        ),
    ],
)
def test_each_transform_does_what_its_grammar_says(text: str, names: list[str], result: str) -> None:
    assert transforms.apply(text, names) == result


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "there is no transform ''; there are strip"),
        ("nothing", "split:<separator>:<index>"),
        ("Strip", "there is no transform"),
        ("strip:", "takes nothing"),
        ("json", "lacks what follows"),
        ("regex:", "no pattern"),
        ("regex:(", "RE2 refuses the pattern: missing \\)"),
        ("regex:(?=a)", "RE2 refuses"),
        (r"regex:(a)\1", "RE2 refuses"),
        ("regex:" + "(a)" * 9, "9 groups; the limit is 8"),
        (r"regex:\pL{20}", "too large when compiled"),
        (r"regex:((\pL{100}){100}){100}", "RE2 refuses"),
        ("regex:\ud800", "half a character"),
        ("split:", "no separator"),
        ("split::0", "no separator"),
        ("split:,:", "no index"),
        ("split:,:1.5", "no index"),
        ("split:,:\u0661", "no index"),
        ("split:,:100000", "no index"),
        ("json:.a", "from character 0 on"),
        ("json:a..b", "from character 1 on"),
        ("json:a.", "from character 1 on"),
        ("json:[a]", "from character 0 on"),
        ("json:a[0", "from character 1 on"),
        ('json:["\\q"]', "from character 0 on"),
        ("a" * 1025, "longer than 1,024 bytes"),
        ("x" * 400, "there is no transform 'x{40}…'"),
    ],
)
def test_what_is_no_transform_is_refused_with_the_way_to_write_it(name: str, says: str) -> None:
    with pytest.raises(InvalidTransformError, match=says) as caught:
        transforms.apply("text", ["strip", name])
    assert caught.value.place == 1


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (SECRET, "json:", "the text is no JSON: Expecting value at character 0"),
        ("", "json:", "no JSON"),
        ("NaN", "json:", "number"),
        ("1e999", "json:", "number that is too large"),
        ("9" * 5_000, "json:", "number that is too large"),
        ("[" * 100_000, "json:", "nested too deeply"),
        (f'{{"{SECRET}": 1}}', "json:a", "no such key for step 1"),
        (f'["{SECRET}"]', "json:[1]", "no such item for step 1"),
        (f'["{SECRET}"]', "json:[-2]", "no such item"),
        (f'{{"a": "{SECRET}"}}', "json:a.b", "no JSON object for step 2"),
        (f'{{"a": "{SECRET}"}}', "json:a[0]", "no JSON list for step 2"),
        ('{"0": 1}', "json:[0]", "no JSON list"),
        ('"\\ud800"', "json:", "lone surrogate"),
        ('["\\ud83d"]', "join:", "lone surrogate"),
        (f'"{SECRET}"', "join:,", "no JSON list"),
        (SECRET, "split:,:1", "the text has 1 parts"),
        (SECRET, "split:,:-2", "the text has 1 parts"),
        (SECRET, "regex:z+", "does not match"),
        (SECRET, "regex:(z)?s", "its group has no match"),
    ],
)
def test_what_does_not_apply_is_told_with_its_step_and_without_the_text(
    text: str, name: str, says: str
) -> None:
    with pytest.raises(NotApplicableError, match=says) as caught:
        transforms.apply(text, ["strip", name])
    assert str(caught.value).startswith(f"transform 2 ({name.partition(':')[0]}) does not apply: ")
    assert SECRET not in str(caught.value)
    assert caught.value.place == 1


def test_an_unknown_transform_is_told_before_anything_is_applied() -> None:
    with pytest.raises(InvalidTransformError):
        transforms.apply(SECRET, ["json:", "nothing"])


@pytest.mark.parametrize(
    "pattern", [r"(a*)*b", r"(a+a+)+b", r"(?:a|aa)+$", r"(.*)(.*)(.*)(.*)x", r"(?:a?){50}a{50}b"]
)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_pattern_that_makes_others_backtrack_ends_at_once(pattern: str, size: int) -> None:
    with suppress(NotApplicableError):
        assert set(transforms.apply("a" * size, [f"regex:{pattern}"])) <= {"a"}


def test_a_pattern_and_a_text_that_are_too_much_together_are_refused() -> None:
    name = "regex:(?s)" + "(?:.*x?){200}$"
    assert transforms.apply("a" * 1_000, [name]) == "a" * 1_000
    with pytest.raises(NotApplicableError, match="too long for this pattern, which takes"):
        transforms.apply("a" * limits.VALUE_BYTES, [name])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[" + '"",' * 100_000 + '""]', "join:" + "a" * 1_000),
        ("ΐ" * (limits.VALUE_BYTES // 2), "upper"),
    ],
)
def test_a_result_is_a_value_and_no_larger(text: str, name: str) -> None:
    with pytest.raises(NotApplicableError, match="the result exceeds 8,388,608 bytes"):
        transforms.apply(text, [name])


@pytest.mark.parametrize("name", ["split:,:-1", "split:,:0", "split:,:99999", "first_line", "strip"])
def test_the_longest_value_is_taken_apart(name: str) -> None:
    assert transforms.apply("," * limits.VALUE_BYTES, [name]) in {"", "," * limits.VALUE_BYTES}


@given(scalars, scalars.filter(bool), st.integers(-4, 4))
@example("aaaa", "aa", -1)
def test_a_part_is_one_of_those_between_separators(text: str, separator: str, index: int) -> None:
    # From the end, the last separator is found first.
    parts = text.split(separator) if index >= 0 else text.rsplit(separator)
    if separator.endswith(":") or len(separator.encode()) > 1_000:
        return
    try:
        found = transforms.apply(text, [f"split:{separator}:{index}"])
    except NotApplicableError:
        assert not -len(parts) <= index < len(parts)
    else:
        assert found == parts[index]


@given(st.dictionaries(scalars, documents, min_size=1, max_size=4), st.data())
def test_every_field_of_a_json_text_is_within_reach(document: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    name = f"json:[{json.dumps(key, ensure_ascii=False)}]"
    if len(name.encode()) > limits.TRANSFORM_BYTES:
        return
    found = transforms.apply(json.dumps(document), [name])
    assert found == document[key] if isinstance(document[key], str) else json.loads(found) == document[key]


@given(scalars, st.text())
@example("", "regex:\0")
@example("", "json:[" + "9" * 30 + "]")
def test_any_name_is_taken_or_refused_and_nothing_else(text: str, name: str) -> None:
    for candidate in (name, *(f"{kind}:{name}" for kind in ("split", "regex", "json", "join"))):
        with suppress(transforms.TransformError):
            assert transforms.apply(text, [candidate]).encode() is not None


@pytest.mark.parametrize(
    ("names", "kind", "field"),
    [
        (["strip", "nothing"], errors.INVALID_REQUEST, "x.transforms[1]"),
        (["strip"] * 17, errors.TOO_LARGE, "x.transforms"),
        (["join:" + "漢" * 400], errors.TOO_LARGE, "x.transforms[0]"),
        (["join:\ud800"], errors.INVALID_TEXT, "x.transforms[0]"),
    ],
)
def test_a_request_is_told_which_of_its_transforms_is_wrong(
    names: list[str], kind: errors.Kind, field: str
) -> None:
    with pytest.raises(Fault) as caught:
        TransformChecker().check(names, "x.transforms")
    assert (caught.value.kind, caught.value.field) == (kind, field)


def test_a_request_brings_only_so_many_patterns_and_any_number_of_paths() -> None:
    checker = TransformChecker()
    for place in range(10_000):
        checker.check(["regex:a+", f"json:items[{place}]"], "x")
    for place in range(limits.BATCH_PATTERNS - 1):
        checker.check([f"regex:a{place}"], "x")
    with pytest.raises(Fault, match="65 patterns in a request; the limit is 64"):
        checker.check(["regex:b"], "x")


def test_all_of_a_calls_transforms_are_bounded_together_and_each_call_by_itself() -> None:
    checker = TransformChecker()
    for _ in range(3):
        checker.begin_call()
        for place in range(limits.CALL_TRANSFORMS // 16):
            checker.check(["strip"] * 16, f"x{place}")
    with pytest.raises(Fault, match=r"257 transforms; the limit is 256 .* several calls") as caught:
        checker.check(["lower"], "last")
    assert (caught.value.kind, caught.value.field) == (errors.TOO_LARGE, "last")
