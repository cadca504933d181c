"""Runs a model's chat template (Jinja) as transformers does, within bounds.

A template comes with a model's weights: it may be wrong, and it may be hostile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_STEPS: Final = 200_000
"""Turns of loops and calls in one rendering."""
MOST_CHARS: Final = 2_000_000
"""Length of an output, and of any text or list on the way to it."""
_PADDING: Final = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "translate"))
_UNBOUNDED_FILTERS: Final = ("batch", "center", "format", "indent", "slice", "urlize", "wordwrap", "xmlattr")


class ChatFormatError(Exception):
    """Messages can't be put into the model's chat format; says why."""


class ChatTemplate:
    """A compiled chat template. May be used by any thread."""

    def __init__(self, source: str) -> None:
        """Compiles it.

        Raises:
            ChatFormatError: it is no template.
        """
        self._sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._lock = threading.Lock()
        try:
            self._template = self._sandbox.from_string(source)
            tree = self._sandbox.parse(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatFormatError(f"the model's chat template can't be read: {error}") from None
        self.texts: Final = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]

    def render(self, variables: Mapping[str, Any]) -> str:
        """The template's output.

        Raises:
            ChatFormatError: the template refuses, fails or does not end.
        """
        with self._lock:
            self._sandbox.steps = MOST_STEPS
            try:
                return self._sandbox.gather(self._template.generate(variables))
            except ChatFormatError:
                raise
            except _Refusal as refusal:
                raise ChatFormatError(f"the model's chat template refuses the messages: {refusal}") from None
            except Exception as error:  # noqa: BLE001  (a template can fail in any way code can)
                raise ChatFormatError(f"the model's chat template fails: {error!r}") from None


class _Refusal(Exception):
    """The template raised an error of its own."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts what templates do: loops, calls, and the size of what they make."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    steps = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        self.filters |= {"tojson": _to_json, "_counted": self._count, "_concatenated": self._concatenate}
        self.filters |= {"join": self._join, "replace": self._replace}
        self.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    def gather(self, pieces: Iterable[str]) -> str:
        """The output of a template's generator."""
        made: list[str] = []
        chars = 0
        for piece in pieces:
            made.append(piece)
            chars += len(piece)
            self._check(chars)
        return "".join(made)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and attr not in _PADDING

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            raise ChatFormatError("the model's chat template formats texts, which has no bounds")
        return wrapped

    def call(self, context: Any, obj: Any, *args: Any, **named: Any) -> Any:
        self._step()
        if isinstance(owner := getattr(obj, "__self__", None), str):
            if obj.__name__ == "join" and args:
                return self._join(args[0], owner)
            if obj.__name__ == "replace" and len(args) > 1:
                self._check((owner.count(args[0]) + 1) * len(args[1]))
        return super().call(context, obj, *args, **named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check(_size(left) * _size(right))
        elif operator == "**" or (operator == "%" and isinstance(left, str)):
            raise ChatFormatError(f"the model's chat template uses {operator}, which has no bounds")
        elif operator == "+":
            self._check(_size(left, 1) + _size(right, 1))
        return super().call_binop(context, operator, left, right)

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise ChatFormatError(f"the model's chat template does not end within {MOST_STEPS} steps")

    def _check(self, size: int) -> None:
        if size > MOST_CHARS:
            raise ChatFormatError(f"the model's chat template makes more than {MOST_CHARS} characters")

    def _count(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._step()
            yield value

    def _concatenate(self, values: Iterable[Any]) -> str:
        """What `~` does; a text of a kind of its own passes its kind on, as with `+`."""
        found = [value if isinstance(value, str) else str(value) for value in values]
        self._check(sum(map(str.__len__, found)))
        kind = next((type(value) for value in found if type(value) is not str), str)
        return kind("".join(found))

    def _join(self, values: Iterable[Any], joint: str = "", attribute: str | None = None) -> str:
        found = [str(value if attribute is None else value[attribute]) for value in values]
        self._check(sum(map(len, found)) + len(joint) * len(found))
        return str.join(joint, found)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        self._check((text.count(old) + 1) * len(new))
        return text.replace(old, new, count)


class _Counting(NodeTransformer):
    """Puts a counter into every loop and a measure into every concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  (the visitor's own names)
        if node.recursive:
            raise ChatFormatError("the model's chat template has a recursive loop, which has no bounds")
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        values = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(values, "_concatenated", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what training looks at; here its content is content."""

    tags = {"generation"}  # noqa: RUF012  (the base class has it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _size(value: Any, otherwise: int | None = None) -> int:
    """How long a text or list is, how much an integer repeats one."""
    if isinstance(value, str | list | tuple):
        return str.__len__(value) if isinstance(value, str) else len(value)
    if otherwise is not None:
        return otherwise
    return abs(value) if isinstance(value, int) else 1


def _raise(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= int(indent) <= 16:
        raise ChatFormatError("the model's chat template indents JSON by more than 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
