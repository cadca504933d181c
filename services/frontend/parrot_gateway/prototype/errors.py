"""Errors as the prototype's clients look for them."""

from __future__ import annotations

from typing import Final

from parrot_runtime.errors import Fault

_PATHS: Final = frozenset({"session", "semantic_call", "semantic_var", "py_native_call"})


def is_prototype(path: str) -> bool:
    """Whether a path is of the prototype's API."""
    parts = path.split("/", 3)
    return parts[:2] == ["", "v1"] and len(parts) > 2 and parts[2] in _PATHS


def members(fault: Fault) -> dict[str, str]:
    """What its client reads of an error, beside the members of every other problem of this server."""
    return {"error": f"{fault.kind.type}: {fault.message}", "traceback": ""}
