"""Choices on the server: if and else, and the first of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from parrot.blocks import Made, Variable, add_block, one_or_all, result_of, text_or_variable, wire_of
from parrot.conditions import Condition
from parrot.session import current
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

T = TypeVar("T")


def select(
    *variables: SemanticVariable[T], name: str = "", session: Session | None = None
) -> SemanticVariable[T]:
    """The first of several variables that is not left out by a condition, in the order given.

    Raises:
        SessionError: there is no session, or this is in a body.
        TypeError: there is none, or one is no variable.
    """
    if not variables or not all(isinstance(variable, SemanticVariable) for variable in variables):
        raise TypeError("P.select takes variables, one at least")
    target = session or current("P.select")
    chosen = result_of(variables[0])
    plan = {"from": [variable.id for variable in variables]} | wire_of(chosen)
    add_block(target, "select", plan, inputs=variables, body=None, outputs=[chosen], name=name)
    return chosen


def cond(
    condition: Condition,
    then: Callable[[], Any],
    otherwise: Callable[[], Any] | None = None,
    *,
    session: Session | None = None,
) -> Made:
    """If and else on the server: the outputs of `then` where the condition holds, else of `otherwise`.

    Both are called once, here; each makes calls and returns an output, a variable that there was before, or
    a text; or several, both as many. Without `otherwise`, what `then` returns is left out where the
    condition does not hold, and reading it raises `P.Skipped`.

        answer = P.cond(P.when(kind, equals="code"), lambda: program(task), lambda: prose(task))

    Raises:
        SessionError: there is no session, or a branch does what it can't do here.
        TypeError: a branch returns something else, or another number than the other.
    """
    target = session or current("P.cond")
    chosen = _branch(condition, then, target)
    if otherwise is None:
        return one_or_all(chosen)
    others = _branch(~condition, otherwise, target)
    if len(chosen) != len(others):
        raise TypeError(f"the branches of P.cond return {len(chosen)} and {len(others)} values")
    pairs = zip(chosen, others, strict=True)
    return one_or_all([select(one, other, session=target) for one, other in pairs])


def _branch(condition: Condition, branch: Callable[[], Any], session: Session) -> list[Variable]:
    with condition:
        returned = branch()
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [_conditional(text_or_variable(result), condition, session) for result in results]


def _conditional(variable: Variable, condition: Condition, session: Session) -> Variable:
    """The variable itself, when it is there only under the condition; else one that is."""
    return variable if condition in variable._under else select(variable, session=session)
