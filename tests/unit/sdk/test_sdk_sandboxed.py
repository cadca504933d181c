"""Functions for the server's sandbox: what is sent of them, and what can't run by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.sdk.test_sdk_function import call

import parrot as P

OUTSIDE = 3


@P.sandboxed
def shout(text: str, mark: str = "!") -> str:
    """Says it louder."""
    import re

    def louder(word: str) -> str:
        return word.upper() + mark

    return " ".join(louder(word) for word in re.findall(r"\w+", text))


@P.sandboxed(timeout=5, memory_bytes=1 << 20, outputs={"count": int, "longest": str})
def words(text: P.Input) -> dict[str, str]:
    found = text.split()  # type: ignore[attr-defined]
    return {"count": str(len(found)), "longest": max(found, key=len)}


def test_the_function_itself_is_sent_without_what_it_wears() -> None:
    result, wire = call(shout, "hello", mark=P.variable(content="?"))
    assert wire["native"]["kind"] == "sandbox"
    assert wire["native"]["entry"] == "shout"
    assert wire["native"]["timeout_s"] == 1.0
    assert wire["native"]["source"].startswith("def shout(text, mark):\n")
    assert "prompt" not in wire
    assert [p["name"] for p in wire["placeholders"]] == ["text", "mark", "result"]
    assert result.name == "result"
    scope: dict[str, Any] = {}
    exec(wire["native"]["source"], scope)  # noqa: S102 - the source of this very test
    assert scope["shout"](text="a b", mark="?") == "A? B?"


def test_defaults_are_sent_and_signatures_shown() -> None:
    _, wire = call(shout, "hello")
    assert [p.get("value") for p in wire["placeholders"]] == ["hello", "!", None]
    assert str(inspect.signature(shout)) == "(text, mark='!', *, result=None)"
    assert inspect.getdoc(shout) == "Says it louder."
    with pytest.raises(TypeError, match="missing a required argument"):
        call(shout)


def test_several_outputs_have_types_of_their_own() -> None:
    (count, longest), wire = call(words, "a bcd")
    assert (wire["native"]["timeout_s"], wire["native"]["memory_bytes"]) == (5.0, 1 << 20)
    assert (count._type.read("2", ""), longest._type.read("bcd", "")) == (2, "bcd")


def test_it_stands_in_bodies_and_under_conditions() -> None:
    session = P.Session()
    session._id = "s00-0123456789abcdef"
    P.map(lambda item: shout(item, session=session), ["a"], session=session)
    ((block,), _) = session._outbox._pending.take()
    (body,) = block.to_wire()["map"]["body"]
    assert body["native"]["entry"] == "shout"
    assert block.size_bytes() >= len(shout.source)


def reads_a_global(text: str) -> str:
    return text * OUTSIDE


def reads_one_inside(text: str) -> str:
    return "".join(text for _ in range(OUTSIDE))


def uses_a_module(text: str) -> str:
    return inspect.cleandoc(text)


def closure() -> Callable[[str], str]:
    mine = "x"

    def inner(text: str) -> str:
        return text + mine

    return inner


def recursive(text: str) -> str:
    return text if len(text) < 2 else recursive(text[1:])


def named_like_a_global(text: str) -> str:
    return text.inspect if hasattr(text, "inspect") else text


async def asynchronous(text: str) -> str:
    return text


def many(*text: str) -> str:
    return text[0]


def reserved(session: str) -> str:
    return session


def result_in(result: str) -> str:
    return result


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (reads_a_global, "reads_a_global uses OUTSIDE from outside"),
        (reads_one_inside, "uses OUTSIDE from outside"),
        (uses_a_module, "uses inspect from outside"),
        (closure(), "inner uses mine from outside"),
        (asynchronous, "no plain function"),
        (lambda text: text, "no plain function|can't be found"),
        (len, "no plain function"),
        (many, r"has no \*text"),
        (reserved, "'session' names the session"),
        (result_in, "'result' names the session of a call, or an output"),
    ],
)
def test_what_cannot_run_by_itself_is_refused_when_it_is_defined(function: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        P.sandboxed(function)


@pytest.mark.parametrize("function", [recursive, named_like_a_global])
def test_what_can_is_not(function: Any) -> None:
    assert P.sandboxed(function).source.startswith(f"def {function.__name__}(text):")


def test_a_source_that_is_nowhere_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def f(text):\n    return text\n", scope)  # noqa: S102 - as typed at a prompt
    with pytest.raises(TypeError, match="the source of f can't be found"):
        P.sandboxed(scope["f"])


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"timeout": 0}, ValueError, "more than 0"),
        ({"timeout": 61}, ValueError, "at most 60"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "a number of seconds"),
        ({"memory_bytes": 5}, ValueError, "1 MiB to 1 GiB"),
        ({"memory_bytes": 1e9}, TypeError, "an integer"),
        ({"outputs": "result"}, TypeError, "a list of names"),
        ({"outputs": []}, TypeError, "an output at least"),
        ({"outputs": {"a": complex}}, TypeError, "complex can't be"),
    ],
)
def test_settings_out_of_range_are_refused(
    settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        P.sandboxed(**settings)(recursive)
