"""Graphs that unfold on the server: maps and loops.

What a program would decide between two requests (run this only if, once for each, again until) it
says beforehand, and the server does it, without a round trip and whether or not the program lives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parrot.blocks import Made, Variable, add_block, one_or_all, result_of, text_or_variable, wire_of
from parrot.bodies import Body, Result, parameter_names
from parrot.conditions import Condition, when
from parrot.session import current
from parrot.text import check_text
from parrot.typed import TEXT, list_of
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

T = TypeVar("T")

MAP_ITEMS: Final = 1000
LOOP_ROUNDS: Final = 100


def map(  # noqa: A001 - what it is
    body: Callable[..., Any],
    items: Variable | Sequence[object] | str,
    *,
    lines: bool = False,
    separator: str | None = None,
    joined_by: str | None = None,
    with_index: bool = False,
    max_items: int | None = None,
    name: str = "",
    session: Session | None = None,
) -> Made:
    """Runs `body` for each item of a list, whose length need not be known before it is made.

    `body` is called once, here, with a variable that stands for the item; it makes calls and returns an
    output of theirs, or several. For each of them the map has a variable with the outputs of all items,
    in their order, without those that a condition left out; `get` returns a list of them::

        topics = list_topics("the sea")
        sentences = P.map(describe, topics)
        text = P.map(lambda topic: describe(topic, style="short"), topics, joined_by="\\n")

    Args:
        items: a variable, or a text, that is a JSON array (or see `lines`, `separator`); or a list.
        lines: the items are the lines of the text, stripped, without blank ones.
        separator: the items are what lies between these, stripped, without blank ones.
        joined_by: the outputs become one text, with this between them, instead of a JSON array.
        with_index: `body` also gets the item's place, from 0, as a second variable.
        max_items: a longer list fails the map; 1,000 at most.
        name: for people.
        session: by default the one whose `with` block this is in.

    Raises:
        SessionError: there is no session, or `body` does what a body can't do.
        TypeError: `body` is async, or returns something else than variables.
        ValueError: `lines` and `separator` are both given, or `max_items` is out of range.
    """
    _check_count("max_items", 1 if max_items is None else max_items, MAP_ITEMS)
    target = session or current("P.map")
    listed = _listed(items)
    recording = Body("P.map", target)
    parameters = [recording.parameter(n) for n in parameter_names(body, 1 + with_index)]
    results = recording.record(body, parameters)
    sources = [recording.made(result, "what the body of P.map returns") for result in results]
    collections = [_collection(source, joined_by) for source in sources]
    plan: dict[str, Any] = {
        "list": listed.id,
        "form": _form(lines, separator),
        "item": parameters[0].id,
        "body": recording.to_wire(),
        "collected": [
            _taken(source, collection) | ({} if joined_by is None else {"joined_by": joined_by})
            for source, collection in zip(sources, collections, strict=True)
        ],
    }
    if with_index:
        plan["index"] = parameters[1].id
    if max_items is not None:
        plan["max_items"] = max_items
    add_block(
        target,
        "map",
        plan,
        inputs=[listed],
        body=recording,
        outputs=collections,
        name=name or _name_of(body),
    )
    return one_or_all(collections)


def loop(
    body: Callable[..., Any],
    *initial: Variable | str,
    max_rounds: int,
    must_hold: bool = False,
    name: str = "",
    session: Session | None = None,
) -> Made:
    """Runs `body` again and again until a condition holds, `max_rounds` times at the most.

    `body` is called once, here, with a variable for each of `initial`. It makes calls and returns an
    output for each, which is what the next round gets, then any further outputs, and at last the
    condition that ends the loop. The loop's variables are the outputs of its last round::

        def improve(draft):
            better = rewrite(draft)
            return better, P.when(judge(better), equals="good")

        final = P.loop(improve, draft, max_rounds=5)

    Args:
        initial: what the first round gets: variables or texts.
        max_rounds: 1 to 100.
        must_hold: rounds that are over while the condition doesn't hold fail the loop (`condition_failed`);
            otherwise the last round's outputs stand.
        name: for people.
        session: by default the one whose `with` block this is in.

    Raises:
        SessionError: there is no session, or `body` does what a body can't do.
        TypeError: `body` is async, or does not return outputs and a condition.
        ValueError: `max_rounds` is out of range.
    """
    _check_count("max_rounds", max_rounds, LOOP_ROUNDS)
    target = session or current("P.loop")
    starts = [text_or_variable(given) for given in initial]
    recording = Body("P.loop", target)
    parameters = [recording.parameter(n) for n in parameter_names(body, len(starts))]
    *outputs, until = recording.record(body, parameters)
    if not isinstance(until, Condition) or not outputs or len(outputs) < len(starts):
        raise TypeError(
            f"the body of P.loop returns {max(1, len(starts))} outputs or more, and at last the condition "
            "that ends it"
        )
    recording.made(until.variable, "what the condition is about")
    sources = [recording.made(output, "what the body of P.loop returns") for output in outputs]
    results = [result_of(source) for source in sources]
    plan = {
        "body": recording.to_wire(),
        "carried": [
            {"body": parameter.id, "initial": start.id, "next": source.id}
            for parameter, start, source in zip(parameters, starts, sources, strict=False)
        ],
        "until": until.to_wire(),
        "max_rounds": max_rounds,
        "results": [_taken(source, result) for source, result in zip(sources, results, strict=True)],
        "must_hold": must_hold,
    }
    add_block(
        target, "loop", plan, inputs=starts, body=recording, outputs=results, name=name or _name_of(body)
    )
    return one_or_all(results)


def retry(
    body: Callable[[], T],
    *,
    until: Callable[..., Condition] | None = None,
    max_rounds: int = 3,
    name: str = "",
    session: Session | None = None,
) -> T:
    """Makes the body's calls anew until their output is valid; fails after `max_rounds` in vain.

    With a temperature of 0, or a seed, every try says the same.

    ::

        answer = P.retry(lambda: ask(question), until=lambda answer: P.when(answer, contains="because"))

    Args:
        body: called once, here, without arguments; makes calls and returns an output, or several.
        until: gets these, and returns the condition that must hold; by default, that the first of them is
            of its type.
        max_rounds: 1 to 100.
        name: for people.
        session: by default the one whose `with` block this is in.

    Raises:
        As `loop`. TypeError, too: `until` is not given, and every text is of the output's type.
    """

    def round_of_it() -> tuple[Any, ...]:
        returned = body()
        outputs: tuple[Any, ...] = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
        return (*outputs, until(*outputs) if until is not None else _is_valid(outputs[0]))

    made: T = loop(
        round_of_it,
        max_rounds=max_rounds,
        must_hold=True,
        name=name or _name_of(body) or "retry",
        session=session,
    )
    return made


def _check_count(name: str, count: int, limit: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} is an integer, not {type(count).__name__}")
    if not 1 <= count <= limit:
        raise ValueError(f"{name} is {count}; it is 1 to {limit:,}")


def _listed(items: Variable | Sequence[object] | str) -> Variable:
    if isinstance(items, (SemanticVariable, str)):
        return text_or_variable(items)
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"P.map takes a variable, a text, or a list, not {type(items).__name__}")
    if any(isinstance(item, SemanticVariable) for item in items):
        raise TypeError(
            "these items are there already: call the function for each, [f(item) for item in items]"
        )
    try:
        return SemanticVariable("items", json.dumps(items, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the items of P.map are texts, or what JSON has: {error}") from None


def _form(lines: bool, separator: str | None) -> Any:
    if separator is not None:
        if lines:
            raise ValueError("a list has lines or a separator, not both")
        if not check_text(separator, "the separator"):
            raise ValueError("the separator is empty")
        return {"separator": separator}
    return "lines" if lines else "json_array"


def _collection(source: Variable, joined_by: str | None) -> Variable:
    collection: Variable = SemanticVariable(source.name)
    collection._type = list_of(source._type) if joined_by is None else TEXT
    return collection


def _taken(source: Variable, into: Variable) -> dict[str, Any]:
    return {"from": source.id, **wire_of(into)}


def _is_valid(output: Result) -> Condition:
    if not isinstance(output, SemanticVariable):
        raise TypeError(f"the body of P.retry returns outputs of its calls, not {type(output).__name__}")
    return when(output, **output._type.test())


def _name_of(body: Callable[..., Any]) -> str:
    name = getattr(body, "__name__", "")
    return "" if name == "<lambda>" else name
