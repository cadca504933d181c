"""Plain functions that the server runs, in a sandbox, as nodes of the graph."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import symtable
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, overload

from parrot.arguments import Arguments
from parrot.nodes import Call
from parrot.session import Session, current
from parrot.signatures import RESERVED, call_signature
from parrot.text import check_text
from parrot.typed import TEXT, OutputType

SOURCE_BYTES: Final = 65_536
LONGEST_S: Final = 60.0
MEMORY_BYTES: Final = range(1 << 20, (1024 << 20) + 1)


class Sandboxed:
    """A function that the server runs. Calling it adds a call to the session and returns its outputs at once.

    Made by `P.sandboxed`.

    Attributes:
        name: the Python function's name.
        source: what is sent: the function, without decorators and annotations.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout: float,
        memory_bytes: int | None,
        outputs: Mapping[str, Any] | Collection[str],
    ) -> None:
        self.name = self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.source = _source_of(function)
        types = _types_of(outputs)
        inputs = _inputs_of(function, types)
        self._native: dict[str, Any] = {
            "kind": "sandbox",
            "source": self.source,
            "entry": self.name,
            "timeout_s": _checked_timeout(timeout),
        }
        if memory_bytes is not None:
            self._native["memory_bytes"] = _checked_memory(memory_bytes)
        self._arguments = Arguments(self.name, call_signature(function, set(types)), inputs, types)
        self.__signature__ = self._arguments.signature

    def __repr__(self) -> str:
        return f"<sandboxed function {self.name}{self.__signature__}>"

    def __call__(self, *args: Any, session: Session | None = None, **kwargs: Any) -> Any:
        """Adds a call, and returns its output, or a tuple of them in the order they were declared.

        Inputs and outputs are given as to a semantic function.

        Args:
            session: the session to join; by default the one whose `with` block this is in.

        Raises:
            TypeError: the arguments do not fit the function.
            SessionError: there is no session, or a variable can't be used here.
            InvalidText: a text holds a lone surrogate.
        """
        inputs, outputs = self._arguments.bind(args, kwargs)
        target = session or current(self.name)
        target._add(Call(self.name, "", "", inputs, outputs, {}, native=self._native))
        return self._arguments.returned(outputs)


@overload
def sandboxed(function: Callable[..., Any], /) -> Sandboxed: ...


@overload
def sandboxed(
    *,
    timeout: float = 1.0,
    memory_bytes: int | None = None,
    outputs: Mapping[str, Any] | Collection[str] = ("result",),
) -> Callable[[Callable[..., Any]], Sandboxed]: ...


def sandboxed(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout: float = 1.0,
    memory_bytes: int | None = None,
    outputs: Mapping[str, Any] | Collection[str] = ("result",),
) -> Sandboxed | Callable[[Callable[..., Any]], Sandboxed]:
    """Makes a function that the server runs, where its operator lets it (`parrot up --sandbox`).

    ::

        @P.sandboxed
        def first_word(text):
            return text.split()[0]

        @P.sandboxed(outputs={"count": int, "longest": str})
        def words(text):
            found = text.split()
            return {"count": str(len(found)), "longest": max(found, key=len)}

    Its source goes with each call, and runs there by itself: it gets its inputs as texts, has no file, no
    network and no packages (it may import what computes, such as json, re and math, within itself), and uses
    nothing from outside of it. It returns the output's text; of several outputs, a dict of them. It may run
    twice where its engine dies, so it should make the same of the same inputs. Where the server is not to run
    it, `P.native_function` makes a function that this process runs.

    Args:
        timeout: seconds it may run, 60 at most.
        memory_bytes: what it may take, 1 MiB to 1 GiB; by default 64 MiB.
        outputs: the names of its outputs, or each with its type.

    Raises:
        TypeError: it is no plain function, its source can't be found, or it uses something from outside.
        ValueError: `timeout`, `memory_bytes` or its source is out of range.
    """
    make = functools.partial(Sandboxed, timeout=timeout, memory_bytes=memory_bytes, outputs=outputs)
    return make if function is None else make(function)


def _source_of(function: Callable[..., Any]) -> str:
    """The function by itself.

    Raises:
        TypeError: it can't run by itself.
        ValueError: it is too long.
    """
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is no plain function; make one with def")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError) as error:
        raise TypeError(f"the source of {name} can't be found ({error}); put it into a file") from None
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"{name} is no plain function; make one with def")
    tree.decorator_list, tree.returns = [], None
    for parameter in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        parameter.annotation = None
    # Every input is given by name; what is left out here gets its default before it is sent.
    tree.args.posonlyargs, tree.args.args = [], [*tree.args.posonlyargs, *tree.args.args]
    tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kwonlyargs)
    source = check_text(ast.unparse(tree) + "\n", f"the source of {name}")
    if len(source.encode()) > SOURCE_BYTES:
        raise ValueError(f"the source of {name} has more than {SOURCE_BYTES:,} bytes")
    _check_alone(name, source)
    return source


def _check_alone(name: str, source: str) -> None:
    tables = [symtable.symtable(source, name, "exec")]
    outside: set[str] = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        if table.get_type() != "module":
            outside |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    outside -= {name, *dir(builtins)}
    if outside:
        raise TypeError(
            f"{name} uses {', '.join(sorted(outside))} from outside, and runs by itself; import modules and "
            "make helpers within it, and pass the rest as inputs"
        )


def _types_of(outputs: Mapping[str, Any] | Collection[str]) -> dict[str, OutputType]:
    if isinstance(outputs, str):
        raise TypeError("outputs is a list of names, or a dict of their types")
    kinds = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, str)
    if not kinds:
        raise TypeError("a sandboxed function has an output at least")
    return {
        check_text(name, "an output"): TEXT if kind is str else OutputType(kind)
        for name, kind in kinds.items()
    }


def _inputs_of(function: Callable[..., Any], outputs: Collection[str]) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise TypeError(f"{function.__name__}: a sandboxed function has no *{parameter.name}")
        if parameter.name == RESERVED or parameter.name in outputs:
            raise TypeError(
                f"{function.__name__}: {parameter.name!r} names the session of a call, or an output; "
                "rename it"
            )
        names.append(parameter.name)
    return names


def _checked_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= LONGEST_S:
        raise ValueError(f"timeout is {timeout}; it is more than 0 and at most {LONGEST_S:g} seconds")
    return float(timeout)


def _checked_memory(memory_bytes: int) -> int:
    if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int):
        raise TypeError(f"memory_bytes is an integer, not {type(memory_bytes).__name__}")
    if memory_bytes not in MEMORY_BYTES:
        raise ValueError(f"memory_bytes is {memory_bytes:,}; it is 1 MiB to 1 GiB")
    return memory_bytes
