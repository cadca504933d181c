"""The tools of one request: how the model is told of them, what it must write, and how that is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from parrot_gateway.openai.members import AllowedChoice, Function, NamedTool, Tool, ToolChoice
from parrot_gateway.openai.schemas import ANY_OBJECT, calls_schema, text_or_calls_schema
from parrot_gateway.openai.tool_reader import NamedReader, PlainReader, Reader, ToolReader
from parrot_runtime import errors
from parrot_runtime.errors import Fault

Mode = Literal["none", "auto", "required", "named"]

# As the chat templates of Hermes and Qwen have it, whose models were taught by these words.
_HEAD: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_TAGGED: Final = """\
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
_LISTED: Final = """\
</tools>

Answer with function calls and nothing else: a JSON list of objects, each with function name and arguments:
[{"name": <function-name>, "arguments": <args-json-object>}]"""
_WRAPPED: Final = """\
</tools>

Either answer the query, or return function calls and nothing else: a JSON object that holds a list, \
with function name and arguments for each call:
{"tool_calls": [{"name": <function-name>, "arguments": <args-json-object>}]}"""
_NAMED: Final = """\
</tools>

Call the function %s: answer with its arguments and nothing else, as one JSON object."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """See the module.

    Attributes:
        mode: whether a call may be made, or has to be; `named`: of the only function there is.
        several: one answer may hold more calls than one.
        text_schema: what the text has to be where no call is made; None: any text.
    """

    functions: tuple[Function, ...] = ()
    mode: Mode = "none"
    several: bool = True
    text_schema: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool] | None,
        choice: ToolChoice | None,
        *,
        several: bool | None = None,
        text_schema: dict[str, Any] | None = None,
    ) -> Toolbox:
        """The tools of a request.

        Raises:
            Fault: `invalid_request`: two functions of one name, or a choice of a function that isn't there.
        """
        functions = tuple(tool.function for tool in tools or ())
        _check_names(functions)
        if isinstance(choice, AllowedChoice):
            functions = tuple(_pick(functions, one) for one in choice.allowed_tools.tools)
        elif isinstance(choice, NamedTool):
            functions = (_pick(functions, choice),)
        if choice is not None and choice != "none" and not functions:
            raise _wrong("tool_choice", "there are no tools to choose from; send tools, or leave it out")
        mode = _mode(functions, choice)
        return cls(functions if mode != "none" else (), mode, several is not False, text_schema)

    @property
    def instructions(self) -> str:
        """What the model is told of the tools; empty: there are none."""
        if self.mode == "none":
            return ""
        lines = [json.dumps(_signature(one), ensure_ascii=False) + "\n" for one in self.functions]
        return _HEAD + "".join(lines) + self._how()

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of what the model writes; None: it may be any text."""
        if self.mode == "named":
            return self.functions[0].parameters or ANY_OBJECT
        if self.mode == "required":
            return calls_schema(self.functions, several=self.several)
        if self.mode == "auto" and self.text_schema is not None:
            return text_or_calls_schema(self.text_schema, self.functions, several=self.several)
        return self.text_schema

    def reader(self) -> Reader:
        """Reads one output, from its beginning."""
        if self.mode == "none":
            return PlainReader()
        if self.mode == "named":
            return NamedReader(self.functions[0].name)
        names = [function.name for function in self.functions]
        return ToolReader(names, tagged=self.mode == "auto" and self.text_schema is None)

    def _how(self) -> str:
        if self.mode == "named":
            return _NAMED % self.functions[0].name
        if self.mode == "required":
            return _LISTED
        return _TAGGED if self.text_schema is None else _WRAPPED


def _mode(functions: tuple[Function, ...], choice: ToolChoice | None) -> Mode:
    if not functions or choice == "none":
        return "none"
    if isinstance(choice, NamedTool):
        return "named"
    if isinstance(choice, AllowedChoice):
        return choice.allowed_tools.mode
    return "required" if choice == "required" else "auto"


def _signature(function: Function) -> dict[str, Any]:
    told = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": {name: said for name, said in told.items() if said is not None}}


def _pick(functions: tuple[Function, ...], named: NamedTool) -> Function:
    found = next((one for one in functions if one.name == named.function.name), None)
    if found is None:
        raise _wrong("tool_choice", f"there is no function {named.function.name[:64]!r} among the tools")
    return found


def _check_names(functions: tuple[Function, ...]) -> None:
    seen: set[str] = set()
    for place, function in enumerate(functions):
        if function.name in seen:
            raise _wrong(f"tools[{place}].function.name", f"{function.name!r} is there twice")
        seen.add(function.name)


def _wrong(field: str, why: str) -> Fault:
    return Fault(errors.INVALID_REQUEST, f"{field}: {why}", field=field)
