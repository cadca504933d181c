"""Templates: one grammar, in which everything is a hole, a literal, text, or an error with its place."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot.errors import PlaceholderError, TemplateError
from parrot.template import Direction, Hole, Piece, Text, bind, literal, parse

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
TEXTS = st.text(st.sampled_from("{}'\" \n\tab_é漢:") | st.characters(exclude_categories=["Cs"]))


def outcome(template: str) -> tuple[tuple[Piece, ...], TemplateError | None]:
    """What parsing gives or raises."""
    try:
        return parse(template), None
    except TemplateError as error:
        return (), error


def hole(name: str, direction: Direction | None = None, line: int = 1, column: int = 1) -> Hole:
    return Hole(name, direction, line, column)


@given(TEXTS)
def test_a_text_written_literally_is_itself(text: str) -> None:
    assert parse(literal(text)) == ((Text(text),) if text else ())


@given(TEXTS.filter(lambda text: "{{" not in text))
def test_a_text_without_double_braces_needs_no_escaping(text: str) -> None:
    assert parse(text) == ((Text(text),) if text else ())


@given(TEXTS, NAMES, TEXTS)
def test_a_hole_is_found_between_any_two_texts(before: str, name: str, after: str) -> None:
    pieces = parse(literal(before) + "{{" + name + "}}" + literal(after))
    assert [piece.name for piece in pieces if isinstance(piece, Hole)] == [name]
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == before + after


@given(TEXTS)
def test_parsing_ends_in_pieces_or_in_an_error_with_its_place(text: str) -> None:
    pieces, error = outcome(text)
    if error is not None:
        assert text.split("\n")[error.line - 1][error.column - 1 :].startswith("{{")
    assert all(isinstance(piece, Hole) or piece.text for piece in pieces)
    kinds = [type(piece) for piece in pieces]
    assert (Text, Text) not in list(itertools.pairwise(kinds))


@pytest.mark.parametrize(
    ("template", "pieces"),
    [
        ("{{x}}", (hole("x"),)),
        ("{{ \tx }}", (hole("x"),)),
        ("{{input:x}}", (hole("x", "input"),)),
        ("{{ output:x\t}}", (hole("x", "output"),)),
        ("{{{x}}}", (Text("{"), hole("x", column=2), Text("}"))),
        ("{{{{x}}", (Text("{{"), hole("x", column=3))),
        ("{{'{{'}}name}}", (Text("{{name}}"),)),
        ('{{"it\'s"}}', (Text("it's"),)),
        ("{{'it's'}}", (Text("it's"),)),
        ("{{''}}", ()),
        ("}} a } { b", (Text("}} a } { b"),)),
        ('{"a": {"b": 1}, "r": "{1,3}"}', (Text('{"a": {"b": 1}, "r": "{1,3}"}'),)),
        ("a\nb {{x}}\n{{y}}", (Text("a\nb "), hole("x", None, 2, 3), Text("\n"), hole("y", None, 3, 1))),
    ],
)
def test_the_grammar_by_example(template: str, pieces: tuple[Piece, ...]) -> None:
    assert parse(template) == pieces


def test_a_prompt_that_shows_json_and_a_literal_hole_means_what_it_says() -> None:
    template = 'Reply as {"name": "{{x}}", "tags": ["a", "b"], "range": "{1,3}"} and show {{\'{{\'}}a hole}}.'
    assert parse(template) == (
        Text('Reply as {"name": "'),
        hole("x", column=20),
        Text('", "tags": ["a", "b"], "range": "{1,3}"} and show {{a hole}}.'),
    )


@pytest.mark.parametrize(
    ("template", "place", "says"),
    [
        ("a {{x", (1, 3), "not closed"),
        ("a {{x\n}}", (1, 3), "not closed"),
        ("{{}}", (1, 1), "no name"),
        ("{{ }}", (1, 1), "no name"),
        ("{{input:}}", (1, 1), "no name"),
        ("b\n {{1x}}", (2, 2), "digit"),
        ("{{é}}", (1, 1), "'é'"),
        ("{{a.b}}", (1, 1), "'a.b'"),
        ("{{a b}}", (1, 1), "'a b'"),
        ("{{in:a}}", (1, 1), "'in:a'"),
        ("{{'a}}", (1, 1), '"\'a"'),
        ("{{" + "n" * 201 + "}}", (1, 1), "201 characters"),
    ],
)
def test_what_is_no_hole_is_an_error_with_its_place(template: str, place: tuple[int, int], says: str) -> None:
    with pytest.raises(TemplateError, match=says) as caught:
        parse(template)
    assert (caught.value.line, caught.value.column) == place


def test_a_long_template_is_parsed_in_linear_time() -> None:
    assert len(parse("{{x}} text\n" * 50_000)) == 100_000
    with pytest.raises(TemplateError):
        parse("{{" + " " * 1_000_000)
    with pytest.raises(TemplateError):
        parse("{{'" + "' " * 500_000)


@pytest.mark.parametrize(
    ("template", "inputs", "outputs", "name", "says"),
    [
        ("a {{x}}{{z}}", ["x"], ["y"], "y", "no hole"),
        ("a {{x}}: {{y}}", [], ["y"], "x", "not declared"),
        ("a {{y}} b {{y}}", [], ["y"], "y", "twice"),
        ("a {{y}}{{z}}", [], ["y", "z"], "z", "directly"),
        ("{{y}} a", [], ["y"], "y", "first"),
        ("a {{x}} {{y}}", ["x", "y"], ["y"], "y", "both"),
        ("a {{output:x}} {{y}}", ["x"], ["y"], "x", "one or the other"),
        ("a {{x}}", ["x"], [], "", "no output"),
    ],
)
def test_template_and_declarations_must_agree(
    template: str, inputs: list[str], outputs: list[str], name: str, says: str
) -> None:
    with pytest.raises(PlaceholderError, match=says) as caught:
        bind(parse(template), [*inputs, *(["z"] if name == "y" and "{{z}}" in template else [])], outputs)
    assert caught.value.name == name


def test_an_input_may_repeat_and_outputs_may_follow_inputs() -> None:
    pieces = bind(parse("{{x}}{{y}} {{x}}{{x}}{{z}}"), ["x"], ["y", "z"])
    ways = [piece.direction for piece in pieces if isinstance(piece, Hole)]
    assert ways == ["input", "output", "input", "input", "output"]
