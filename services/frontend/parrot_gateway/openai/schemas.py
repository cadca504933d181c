"""JSON schemas of calls: what a model that has to call functions must write."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from parrot_gateway.openai.members import Function

Schema = dict[str, Any]
ANY_OBJECT: Final[Schema] = {"type": "object"}


def calls_schema(functions: Sequence[Function], *, several: bool) -> Schema:
    """A list of calls, at least one; `several`: or more."""
    schema: Schema = {"type": "array", "items": _one_of(functions), "minItems": 1}
    if not several:
        schema["maxItems"] = 1
    return schema | _definitions(functions)


def text_or_calls_schema(text: Schema, functions: Sequence[Function], *, several: bool) -> Schema:
    """What the text has to be, or an object that holds calls."""
    calls = calls_schema(functions, several=several)
    definitions = calls.pop("$defs")
    wrapped = {
        "type": "object",
        "properties": {"tool_calls": calls},
        "required": ["tool_calls"],
        "additionalProperties": False,
    }
    definitions["text"] = moved(text, "#/$defs/text")
    return {"anyOf": [{"$ref": "#/$defs/text"}, wrapped], "$defs": definitions}


def moved(schema: Schema, to: str) -> Schema:
    """A schema as part of another: what it refers to in itself is found at `to`, a JSON pointer."""
    found = copy.deepcopy(schema)
    todo: list[Any] = [found]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
                node["$ref"] = to + reference[1:]
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return found


def _one_of(functions: Sequence[Function]) -> Schema:
    return {"anyOf": [_call(number, function) for number, function in enumerate(functions)]}


def _call(number: int, function: Function) -> Schema:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            "arguments": {"$ref": f"#/$defs/arguments-{number}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _definitions(functions: Sequence[Function]) -> Schema:
    """Objects within one another, and no lists: some grammars follow a pointer through no others."""
    return {
        "$defs": {
            f"arguments-{number}": moved(function.parameters or ANY_OBJECT, f"#/$defs/arguments-{number}")
            for number, function in enumerate(functions)
        }
    }
