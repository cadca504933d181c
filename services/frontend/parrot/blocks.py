"""What maps, loops and choices share: how a block is put together and added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parrot.bodies import Body
from parrot.nodes import Block
from parrot.text import check_text
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

Variable = SemanticVariable[Any]
Made = Any
"""A variable, or a tuple of variables: as many as were returned."""


def add_block(
    session: Session,
    kind: str,
    plan: dict[str, Any],
    *,
    inputs: Sequence[Variable],
    body: Body | None,
    outputs: Sequence[Variable],
    name: str,
) -> None:
    """Adds a block to a session.

    Args:
        inputs: the variables of the session that it names itself.
        body: what it repeats; what that reads of the session are inputs too.
        outputs: the variables that it makes.
    """
    outer = body.outer.values() if body is not None else ()
    named = {output.name or str(place): output for place, output in enumerate(outputs)}
    if len(named) < len(outputs):
        named = {f"{output.name}_{place}": output for place, output in enumerate(outputs)}
    session._add(
        Block(
            check_text(name, "the name of a block"),
            kind,
            plan,
            tuple(dict.fromkeys([*inputs, *outer])),
            named,
            body.calls if body is not None else (),
        )
    )


def text_or_variable(given: object) -> Variable:
    """A variable itself; a text as a variable.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, SemanticVariable):
        return given
    if isinstance(given, str):
        return SemanticVariable(None, given)
    raise TypeError(f"a variable or a text is wanted here, not {type(given).__name__}")


def result_of(source: Variable) -> Variable:
    """A new variable for what will be `source`, in the end."""
    result: Variable = SemanticVariable(source.name)
    result._type = source._type
    return result


def wire_of(variable: Variable) -> dict[str, Any]:
    """A variable that a block makes, as the server's API takes it."""
    return {"semantic_var_id": variable.id, "name": variable.name}


def one_or_all(variables: Sequence[Variable]) -> Made:
    """The variable, where there is one; else a tuple of them."""
    return variables[0] if len(variables) == 1 else tuple(variables)
