"""Calls that go on where another one ended: what the prompt of the next one begins with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from parrot.compat import variables
from parrot.compat.arguments import BasicCall
from parrot.compat.body import Constant, Piece
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.compat.functions import SemanticCall
    from parrot.session import Session


CONTEXTS: Final = "contexts"


@dataclass(frozen=True, slots=True)
class Bound:
    """What stood in a hole, which never becomes template text, and what was done to it."""

    value: str | SemanticVariable
    transforms: tuple[str, ...] = ()


Told = tuple[str | Bound, ...]
"""A conversation so far: template texts, and what stood between them."""


@dataclass(slots=True)
class Context:
    """What a call goes on from, and what its successor will."""

    before: Told
    after: Told = ()


@contextmanager
def continued(session: Session, name: str, successor: str | None) -> Iterator[Context]:
    """The context left for the function `name`, which is taken if the block succeeds; what the call
    adds is left for `successor` then."""
    table: dict[str, Told] = session._beside.setdefault(CONTEXTS, {})
    context = Context(table.get(name, ()))
    yield context
    table.pop(name, None)
    if successor is not None:
        table[successor] = context.after


def pieces_of(call: SemanticCall) -> Told:
    """A call's own prompt, its outputs included."""
    return tuple(_told(call, piece) for piece in call.func.body)


def hold(call: SemanticCall) -> None:
    """Makes variables of a call's arguments: they are sent once, however long the conversation goes on."""
    for param in call.func.inputs:
        given = bound_text(call, param.name)
        if isinstance(given, str):
            call.bindings[param.name] = variables.SemanticVariable(param.name, given)


def bound_text(call: BasicCall, name: str) -> str | SemanticVariable:
    """What stands in a parameter's hole: a variable, or a text."""
    given = call.bindings[name]
    return given if isinstance(given, SemanticVariable) else call.text_of(call.func.params_map[name], given)


def _told(call: SemanticCall, piece: Piece) -> str | Bound:
    if isinstance(piece, Constant):
        return piece.text
    # What an output's transforms make is its text already.
    transforms = () if piece.param.is_output else piece.param.transforms
    return Bound(bound_text(call, piece.param.name), transforms)
