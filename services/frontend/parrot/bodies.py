"""Bodies of maps and loops: a Python function that is run once, to see which calls it makes.

Its variables stand for a value that differs from instance to instance; they have names of the body's
own, and none of them can be read here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from parrot.conditions import Aside, Condition
from parrot.errors import SessionError
from parrot.nodes import Call
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

_NAME_CHARS: Final = 40
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")

_recorded: ContextVar[Body | None] = ContextVar("parrot_body", default=None)

Result = SemanticVariable[Any] | Condition


def recorded() -> Body | None:
    """The body that is being recorded, here and now; None: calls go to their session."""
    return _recorded.get()


class Body:
    """The calls that a function makes.

    Attributes:
        owner: whose body it is, such as "P.map".
        session: the session that its block joins.
        outer: the variables of the session that it reads.
    """

    def __init__(self, owner: str, session: Session) -> None:
        self.owner = owner
        self.session = session
        self.outer: dict[str, SemanticVariable[Any]] = {}
        self._own: list[SemanticVariable[Any]] = []
        self._calls: list[Call] = []

    def parameter(self, name: str) -> SemanticVariable[Any]:
        """A variable that comes to the body from its block."""
        return self._adopt(SemanticVariable(name))

    def record(
        self, function: Callable[..., Any], parameters: Sequence[SemanticVariable[Any]]
    ) -> list[Result]:
        """What the function returns, whose calls are recorded; always a list.

        Raises:
            SessionError: it did what a body can't do, or made no call.
            TypeError: it is no plain function, or returns something else than variables.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"the body of {self.owner} is a plain function, not an async one: it only makes calls"
            )
        if _recorded.get() is not None:
            raise self.refuse(f"{self.owner} can't be used")
        token = _recorded.set(self)
        try:
            with Aside():
                returned = function(*parameters)
        finally:
            _recorded.reset(token)
        if not self._calls:
            raise SessionError(f"the body of {self.owner} makes no call, so there is nothing to repeat")
        self._name_all()
        return self._results(returned)

    def refuse(self, what: str) -> SessionError:
        """That something can't be done in this body."""
        body = _recorded.get() or self
        return SessionError(
            f"{what} in the body of {body.owner}: a body makes calls, and conditions for them"
        )

    def add(self, call: Call) -> None:
        """Takes in a call.

        Raises:
            SessionError: one of its variables can't be used here.
        """
        for variable in call.reads():
            if variable._body is None:
                self.outer[variable.id] = variable
            elif variable._body is not self:
                raise foreign(variable)
        for name, variable in call.outputs.items():
            if variable._produced or variable._text is not None or variable._body is not None:
                raise SessionError(f"{variable!r} has a text already, or a call that makes it")
            variable._produced = True
            variable.name = variable.name or name
            self._adopt(variable)
        self._calls.append(call)

    def made(self, result: Result, what: str) -> SemanticVariable[Any]:
        """A result that is an output of the body.

        Raises:
            SessionError: it is no variable, or comes from elsewhere.
        """
        if isinstance(result, SemanticVariable) and result._body is self and result._produced:
            return result
        raise SessionError(
            f"{what} is {result!r}, which no call of the body makes; return outputs of its calls"
            + (", and read what does not change from outside" if self._is_parameter(result) else "")
        )

    @property
    def calls(self) -> tuple[Call, ...]:
        """Those that were recorded so far."""
        return tuple(self._calls)

    def to_wire(self) -> list[dict[str, Any]]:
        """Its calls as the server's API takes them."""
        return [call.to_wire() for call in self._calls]

    def _is_parameter(self, result: object) -> bool:
        return isinstance(result, SemanticVariable) and result._body is self and not result._produced

    def _adopt(self, variable: SemanticVariable[Any]) -> SemanticVariable[Any]:
        variable._body = self
        self._own.append(variable)
        return variable

    def _name_all(self) -> None:
        """Gives its variables names that people know again, and no variable from outside has."""
        taken = set(self.outer)
        for variable in self._own:
            base = _NO_NAME.sub("_", variable.name)[:_NAME_CHARS] or "output"
            name, number = base, 2
            while name in taken:
                name, number = f"{base}-{number}", number + 1
            taken.add(name)
            variable.id = name

    def _results(self, returned: Any) -> list[Result]:
        results: list[Result] = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        for result in results:
            if not isinstance(result, (SemanticVariable, Condition)):
                raise TypeError(
                    f"the body of {self.owner} returns {type(result).__name__}, and no output of its calls"
                )
        return results


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names for a body's parameters: the function's own, where it has as many."""
    try:
        known: Iterable[str] = list(inspect.signature(function).parameters)[:count]
    except (TypeError, ValueError):
        known = []
    names = list(known)
    return names + [f"value_{number}" for number in range(len(names) + 1, count + 1)]


def foreign(variable: SemanticVariable[Any]) -> SessionError:
    """That a variable stands for something else from instance to instance."""
    owner = variable._body.owner if variable._body is not None else "another call"
    return SessionError(
        f"{variable!r} belongs to the body of {owner} and differs from instance to instance; use what "
        f"{owner} returns"
    )
