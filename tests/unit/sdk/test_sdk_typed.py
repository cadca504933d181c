"""Typed outputs: the schema of a type, its values from JSON, and what is none of them."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import jsonschema
import pydantic
import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sdk.test_sdk_function import call

import parrot as P
from parrot.arguments import text_of
from parrot.typed import OutputType, list_of


class Colour(Enum):
    """Texts to choose from."""

    RED = "red"
    BLUE = "blue"


class Level(Enum):
    """Numbers to choose from."""

    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.0


class Options(TypedDict):
    """A typed dict."""

    colour: Colour
    note: NotRequired[str]


@dataclass
class Person:
    """A record that holds others, and itself."""

    name: str
    age: int | None = None
    at: Point = field(default_factory=lambda: Point(0))
    tags: list[str] = field(default_factory=list)
    children: list[Person] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    pair: tuple[int, bool] = (0, False)


@dataclass
class Even:
    """A record with a check of its own."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class City(pydantic.BaseModel):
    """A pydantic model."""

    name: str = pydantic.Field(min_length=1)
    people: int = pydantic.Field(ge=0)


class Country(pydantic.BaseModel):
    """One that holds another, and itself."""

    capital: City
    cities: list[City] = []
    parts: list[Country] = []


@dataclass
class Trip:
    """A record of models."""

    stops: list[Country]
    colour: Colour = Colour.RED


UserId = NewType("UserId", int)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Point):
        return {"x": value.x, "y": value.y}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(found) for name, found in value.items()}
    return [plain(found) for found in value] if isinstance(value, (list, tuple, set, frozenset)) else value


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INTS = st.integers(-(2**53), 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.builds(Point, INTS, FLOATS)
CITIES = st.builds(City, name=TEXTS.filter(bool), people=st.integers(0, 9))
COUNTRIES: st.SearchStrategy[Country] = st.deferred(
    lambda: st.builds(
        Country,
        capital=CITIES,
        cities=st.lists(CITIES, max_size=2),
        parts=st.lists(COUNTRIES, max_size=1),
    )
)
PEOPLE: st.SearchStrategy[Person] = st.deferred(
    lambda: st.builds(
        Person,
        TEXTS,
        st.none() | INTS,
        POINTS,
        st.lists(TEXTS, max_size=2),
        st.lists(PEOPLE, max_size=1),
        st.dictionaries(TEXTS, FLOATS, max_size=2),
        st.tuples(INTS, st.booleans()),
    )
)
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INTS),
    (float, FLOATS),
    (type(None), st.none()),
    (Optional[int], st.none() | INTS),  # noqa: UP045 - written in both ways
    (UserId, INTS),
    (Annotated[int, "of days"], INTS),
    (list[int], st.lists(INTS, max_size=3)),
    (tuple[int, ...], st.lists(INTS, max_size=3).map(tuple)),
    (set[str], st.sets(TEXTS, max_size=3)),
    (frozenset[str], st.frozensets(TEXTS, max_size=3)),
    (dict[str, list[bool]], st.dictionaries(TEXTS, st.lists(st.booleans(), max_size=2), max_size=2)),
    (int | str, INTS | TEXTS),
    (Point, POINTS),
    (Person, PEOPLE),
    (list[Literal["a", 1, None]], st.lists(st.sampled_from(["a", 1, None]), max_size=3)),
    (
        Options,
        st.fixed_dictionaries({"colour": st.sampled_from(Colour)}, optional={"note": TEXTS}),
    ),
    (City, CITIES),
    (Country, COUNTRIES),
    (Trip, st.builds(Trip, st.lists(COUNTRIES, max_size=2), st.sampled_from(Colour))),
]


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind[0]), kind[1])))
def test_what_the_schema_admits_comes_back_as_the_value_it_was(case: tuple[Any, Any]) -> None:
    kind, value = case
    output = OutputType(kind)
    text = json.dumps(plain(value))
    assert output.guide is not None
    schema = json.loads(str(output.guide.json_schema))
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    found = output.read(f" {text}\n", "x")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_schemas_are_valid_and_refer_to_nothing_outside(kind: Any) -> None:
    guide = OutputType(kind).guide
    assert guide is not None
    schema = json.loads(str(guide.json_schema))
    jsonschema.Draft202012Validator.check_schema(schema)
    for name in re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema)):
        assert name in schema["$defs"]


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (int, "1.5", "the value is a number, and not an integer"),
        (int, "true", "a truth value, and not an integer"),
        (float, '"1"', "a text, and not a number"),
        (int, "", "no JSON"),
        (int, "1 2", "no JSON"),
        (float, "NaN", "NaN is no JSON number"),
        (list[int], "[" * 100_000, "no JSON"),
        (list[int], '[1, "a"]', r"\[1\] is a text, and not an integer"),
        (dict[str, int], '{"a": null}', r"\.a is null, and not an integer"),
        (tuple[int, bool], "[1]", "an array of 2"),
        (Point, '{"y": 1}', "x is missing"),
        (Point, '{"x": 1, "z": 2}', "z is no field of Point"),
        (Point, "[]", "an array, and not an object"),
        (Person, '{"name": "A", "children": [{"age": 1}]}', r"children\[0\]\.name is missing"),
        (int | list[int], '"a"', "not an integer; or .* not an array"),
        (Even, '{"number": 3}', "refused by Even: 3 is odd"),
        (City, '{"name": "Rome", "people": -1}', "people: Input should be greater than"),
        (Trip, '{"stops": [{"capital": {"name": ""}}]}', r"stops\[0\]: capital.name: String should have"),
        (Colour, "green", "none of red, blue"),
        (Literal["yes", "no"], "maybe", "none of yes, no"),
        (bool, "True", "none of true, false"),
        # Not white space to the server either, which would have it tried again.
        (Colour, "\u3000red", "none of red, blue"),
        (set[Any], "[[]]", "can't be in a set"),
    ],
)
def test_a_text_that_is_no_value_of_the_type_says_where_and_why(kind: Any, text: str, says: str) -> None:
    with pytest.raises(P.InvalidOutput, match=says) as caught:
        OutputType(kind).read(text, "answer")
    assert caught.value.text == text
    assert str(caught.value).startswith("answer is no ")


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (Literal["yes", "no"], ["yes", "no"], ["yes", "no"]),
        (Literal[1, 2, None], ["1", "2", "null"], [1, 2, None]),
        (Colour, ["red", "blue"], list(Colour)),
        (Level, ["1", "2"], list(Level)),
        (bool, ["true", "false"], [True, False]),
    ],
)
def test_choices_are_plain_texts(kind: Any, texts: list[str], values: list[Any]) -> None:
    output = OutputType(kind)
    assert output.guide == P.Guide(choice=texts)
    assert [output.read(text, "") for text in texts] == values
    assert [output.read(f" {text}\n", "") for text in texts] == values
    matching = re2.compile(output.test()["matches"])
    assert all(matching.search(f"{text} ") for text in texts)
    assert not matching.search("none")


def test_choices_that_are_one_text_are_told_apart_as_json() -> None:
    output = OutputType(Literal["1", 1, ""])
    assert output.guide == P.Guide(json_schema={"enum": ["1", 1, ""]})
    assert [output.read(text, "") for text in ('"1"', "1", '""')] == ["1", 1, ""]


def test_choices_of_any_text_make_a_test_that_is_literal() -> None:
    output = OutputType(Literal["a.b", "c d|e", "(", "漢\n"])
    matching = re2.compile(output.test()["matches"])
    assert all(matching.search(text) for text in ("a.b", "c d|e", "(", "漢\n"))
    assert not any(matching.search(text) for text in ("axb", "e", "c d"))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (complex, "complex can't be the type"),
        (object.__init__, "can't be the type"),
        (dict[int, str], "keys that are no str"),
        (list[complex], "complex can't be the type"),
        ([int], "can't be the type"),
        ("Person", "can't be the type"),
        (Literal[b"a"], "no JSON scalar"),
        (Annotated[int, pydantic.Field(ge=0)], "pydantic models only"),
    ],
)
def test_a_type_without_a_form_in_json_is_refused_when_it_is_declared(kind: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        P.Output(type=kind)


def test_a_record_whose_types_cannot_be_found_says_so() -> None:
    class Local(Enum):
        A = "a"

    @dataclass
    class Holder:
        local: Local

    with pytest.raises(TypeError, match=r"Holder can't be told \(name 'Local' is not defined\)"):
        P.Output(type=Holder)


def test_an_output_says_its_type_in_several_ways() -> None:
    sampling = P.SamplingConfig(max_gen_length=9)

    @P.semantic_function
    def judge(  # noqa: PLR0917 - a parameter a way
        text: P.Input,
        a: P.Output[Colour],
        b: Annotated[Colour, P.Output(sampling)],
        c: P.Output(sampling, type=Colour),  # type: ignore[valid-type]
        d: P.SemanticVariable[Colour],
        e: Annotated[P.Output[Colour], P.Output],
        f: P.Output["Colour"],  # noqa: UP037 - as those write it who evaluate annotations
    ) -> None:
        """{{text}}: {{a}} {{input:text}} {{b}}, {{c}}; {{output:d}}. {{e}}, {{f}}"""

    outputs, wire = call(judge, "x")
    assert {output._type.annotation for output in outputs} == {Colour}
    samplings = [p["sampling"] for p in wire["placeholders"] if p["in_out"] == "out"]
    assert [s["guide"] for s in samplings] == [{"choice": ["red", "blue"]}] * 6
    assert [s["max_tokens"] for s in samplings] == [512, 9, 9, 512, 512, 512]


def test_a_guide_of_the_callers_own_goes_before_that_of_the_type() -> None:
    own = P.SamplingConfig(guide=P.Guide(regex="[0-9]"))
    output = P.Output(own, type=int)
    assert output.sampling(None)["guide"] == {"regex": "[0-9]"}
    after = P.Output(type=int, transforms="json:age")
    assert "guide" not in after.sampling(None)
    assert after.output_type.read("7", "") == 7


def test_a_collection_is_a_list_of_its_items_values() -> None:
    collection = list_of(OutputType(Point))
    assert collection.read('["{\\"x\\":1}"]', "all") == [Point(1)]
    with pytest.raises(P.InvalidOutput, match=r"all\[1\] is no Point"):
        collection.read('["{\\"x\\":1}", "?"]', "all")


def test_a_typed_value_is_sent_as_it_would_be_read() -> None:
    @P.semantic_function
    def use(person: object, city: object, other: object) -> None:
        """{{person}} {{city}} {{other}} {{output:said}}"""

    person, city = Person("Ann", at=Point(1)), City(name="Rome", people=3)
    _, wire = call(use, person, city, [1])
    values = [p.get("value") for p in wire["placeholders"]]
    assert OutputType(City).read(values[1], "") == city
    assert json.loads(values[0])["name"] == "Ann"
    assert values[2] == "[1]"


@given(
    PEOPLE | CITIES | COUNTRIES | st.builds(Trip, st.lists(COUNTRIES, max_size=2), st.sampled_from(Colour))
)
def test_any_record_is_sent_as_it_would_be_read(record: Any) -> None:
    assert OutputType(type(record)).read(text_of(record), "") == record


def test_a_variable_that_was_given_a_text_reads_as_a_text() -> None:
    assert P.variable(content="7").get() == "7"
