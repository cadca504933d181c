"""What type checkers see of the SDK; checked by mypy with everything else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, assert_type

import parrot as P


@dataclass
class Person:
    """What outputs of a type become."""

    name: str


@P.semantic_function
def person(text: P.Input, person: P.Output[Person], again: Annotated[Person, P.Output()]) -> None:
    """{{text}} {{person}}, {{again}}"""


def statically(typed: P.SemanticVariable[Person], plain: P.SemanticVariable) -> None:
    """Never called."""
    assert_type(person, P.Function)
    assert_type(typed.get(), Person)
    assert_type(plain.get(P.LATENCY, timeout=1), str)
    assert_type(plain.stream(), Iterator[str])
    assert_type(P.variable("x").content, str | None)
    assert_type(P.select(typed, typed), P.SemanticVariable[Person])
    assert_type(P.retry(lambda: typed), P.SemanticVariable[Person])
    assert_type(~P.when(plain, equals="a"), P.Condition)
    assert_type(P.Session().info().blocks, tuple[P.BlockInfo, ...])
    with P.Session(criteria="throughput") as session:
        assert_type(session, P.Session)


async def asynchronously(typed: P.SemanticVariable[Person]) -> None:
    """Never called."""
    assert_type(await typed.aget(perf=P.Deadline(5)), Person)
    async with P.Session() as session:
        assert_type(await session.ainfo(), P.SessionInfo)
    async for piece in typed.astream():
        assert_type(piece, str)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(P.__file__).parent / "py.typed").is_file()


def test_every_public_name_is_there_and_explains_itself() -> None:
    for name in P.__all__:
        found: Any = getattr(P, name)
        if inspect.isclass(found) or inspect.isroutine(found):
            assert inspect.getdoc(found), name
        if inspect.isclass(found) and found.__module__.startswith("parrot."):
            for member, value in vars(found).items():
                if not member.startswith("_") and inspect.isfunction(value):
                    assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


def test_a_function_shows_its_signature_and_docstring_to_help() -> None:
    assert str(inspect.signature(person)) == "(text, *, again=None, person=None)"
    assert "{{person}}" in (inspect.getdoc(person) or "")
    assert person.__name__ == "person"
