"""Conditions, from the client's form to the manager's."""

from __future__ import annotations

from typing import Any

from parrot_gateway.compiled import Compiled, check_id
from parrot_gateway.new_calls import NewCondition
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import limits
from parrot_runtime.errors import Fault


def compile_condition(compiled: Compiled, sent: NewCondition, where: str) -> manager_pb2.Condition:
    """The condition that stands at `where` of its request.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`, with the path of the field.
    """
    check_id(sent.semantic_var_id, f"{where}.semantic_var_id")
    compiled.add_transforms(sent.transforms, f"{where}.transforms")
    name, asked = sent.test
    if isinstance(asked, str):
        compiled.add_text(asked, f"{where}.{name}", limits.CONDITION_BYTES)
    if name == "matches":
        _check_pattern(compiled, str(asked), f"{where}.matches")
    test: dict[str, Any] = {name: asked}
    return manager_pb2.Condition(
        variable_id=sent.semantic_var_id, transforms=sent.transforms, negate=sent.negate, **test
    )


def _check_pattern(compiled: Compiled, pattern: str, where: str) -> None:
    """Patterns are counted with those of the transforms, which they cost as much as."""
    try:
        compiled.transforms.check([f"regex:{pattern}"], where)
    except Fault as fault:
        fault.field = where
        fault.message = fault.message.replace(f"{where}[0]", where)
        raise
