"""A valid body for each route that takes one, and values that have no business in any place of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

OUT: Final = {
    "name": "out",
    "in_out": "out",
    "semantic_var_id": "made",
    "transforms": ["strip"],
    "sampling": {
        "max_tokens": 4,
        "temperature": 0.5,
        "stop": ["x"],
        "logit_bias": {"5": 1.0},
        "seed": 1,
        "guide": {"choice": ["a", "b"]},
    },
    "criteria": {"kind": "deadline", "deadline_unix_ms": 9_999_999_999_999},
}
IN: Final = {"name": "told", "in_out": "in", "value": "a text", "transforms": ["json:a.b"]}
ITEM: Final = {"name": "told", "in_out": "in", "semantic_var_id": "item"}
IN_BODY: Final = {"name": "out", "in_out": "out", "semantic_var_id": "each"}
CALL: Final = {"name": "f", "model": "sim", "prompt": "{{told}}: {{out}}", "placeholders": [IN, OUT]}
WHEN: Final = {"semantic_var_id": "list", "transforms": ["strip"], "json_schema": {"type": "object"}}
MAP: Final = {
    "list": "list",
    "form": {"separator": ","},
    "item": "item",
    "index": "place",
    "max_items": 5,
    "body": [{"name": "g", "prompt": "{{told}}: {{out}}", "placeholders": [ITEM, IN_BODY]}],
    "collected": [{"from": "each", "semantic_var_id": "all", "name": "all", "joined_by": ","}],
}
TOOL: Final = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}

VALID: Final[dict[str, tuple[str, str, Any]]] = {
    "session": (
        "POST",
        "/v1/sessions",
        {
            "label": "x",
            "timeout_s": 5.0,
            "criteria": {"kind": "latency", "deadline_unix_ms": 0},
            "lazy": False,
        },
    ),
    "call": ("POST", "/v1/sessions/{session_id}/calls", CALL),
    "batch": (
        "POST",
        "/v1/sessions/{session_id}/calls",
        {
            "calls": [{**CALL, "when": WHEN}],
            "variables": [{"semantic_var_id": "list", "name": "list", "value": "a,b"}],
            "blocks": [{"name": "each", "map": MAP, "when": WHEN}],
        },
    ),
    "messages": (
        "POST",
        "/v1/sessions/{session_id}/calls",
        {
            "messages": [
                {"role": "user", "content": "{{told}}"},
                {"role": "assistant", "content": "{{out}}"},
            ],
            "placeholders": [IN, {"name": "out", "in_out": "out"}],
        },
    ),
    "native": (
        "POST",
        "/v1/sessions/{session_id}/calls",
        {
            "name": "n",
            "native": {"kind": "client", "timeout_s": 1.0},
            "placeholders": [IN, {"name": "out", "in_out": "out"}],
        },
    ),
    "value": ("PUT", "/v1/sessions/{session_id}/variables/fresh", {"value": "x", "name": "y"}),
    "claim": ("POST", "/v1/sessions/{session_id}/calls/c-1/claim?wait_s=0", {"worker": "w"}),
    "result": (
        "POST",
        "/v1/sessions/{session_id}/calls/c-1/result",
        {"worker": "w", "outputs": {"out": "x"}},
    ),
    "chat": (
        "POST",
        "/v1/chat/completions",
        {
            "model": "sim",
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            "max_completion_tokens": 4,
            "temperature": 0.5,
            "n": 2,
            "stop": ["x"],
            "logit_bias": {"5": 1},
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "none",
            "metadata": {"a": "b"},
            "user": "me",
        },
    ),
    "completion": (
        "POST",
        "/v1/completions",
        {"model": "sim", "prompt": ["a"], "max_tokens": 4, "stop": "x", "seed": 1, "echo": True},
    ),
    "response": (
        "POST",
        "/v1/responses",
        {
            "model": "sim",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            "instructions": "i",
            "max_output_tokens": 4,
            "metadata": {"a": "b"},
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": "none",
            "text": {"format": {"type": "text"}},
        },
    ),
    "prototype": (
        "POST",
        "/v1/semantic_call",
        {
            "session_id": 1,
            "template": "a {{b}}",
            "parameters": [{"name": "b", "is_output": True, "sampling_config": {"temperature": 1.0}}],
            "models": ["sim"],
        },
    ),
}

DEEP: Final = {"lists": ("[", "]"), "objects": ('{"a":', "}")}
DEPTHS: Final = (900, 50_000)
_HERE: Final = "@@here@@"
HOSTILE: Final[dict[str, str]] = {
    **{
        f"{depth} {name}": opening * depth + "1" + closing * depth
        for name, (opening, closing) in DEEP.items()
        for depth in DEPTHS
    },
    "null": "null",
    "true": "true",
    "minus one": "-1",
    "beyond 64 bits": str(1 << 64),
    "hundreds of digits": "9" * 400,
    "thousands of digits": "9" * 5_000,
    "beyond a double": "1e999",
    "no number": "NaN",
    "empty text": '""',
    "zero byte": '"\\u0000"',
    "half a character": '"\\ud83d"',
    "long text": json.dumps("x" * 100_000),
    "braces": '"{{"',
    "empty list": "[]",
    "long list": json.dumps([None] * 2_000),
    "empty object": "{}",
    "strange object": '{"\\u0000": {"": []}, "__proto__": 1}',
}


def spoilt(body: Any) -> Iterator[tuple[str, bytes]]:
    """The body as JSON with each hostile value in each of its places, one at a time; and what is where."""
    for place in _places(body):
        changed = copy.deepcopy(body)
        holder = changed
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = _HERE
        text = json.dumps(changed)
        for name, value in HOSTILE.items():
            yield f"{name} at {place}", text.replace(f'"{_HERE}"', value).encode()


def _places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for step, value in inner:
        yield (*path, step)
        yield from _places(value, (*path, step))
