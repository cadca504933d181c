"""What is skipped: who it is, why, and what that makes of those who read it."""

from __future__ import annotations

from parrot_manager.core.model import Failure, Variable, VariableState
from parrot_runtime import errors


def is_skipped(variable: Variable) -> bool:
    """Whether a variable has no value because a condition did not hold."""
    why = variable.failure
    return variable.state is VariableState.CANCELLED and why is not None and why.type == errors.SKIPPED.type


def has_failed(variable: Variable) -> bool:
    """Whether a variable ended without a value, and was not skipped."""
    return variable.state > VariableState.READY and not is_skipped(variable)


def skipped_itself(session_id: str, owner_id: str) -> Failure:
    """Why a call or block is skipped whose own condition does not hold."""
    return Failure.of(errors.SKIPPED, "its condition does not hold", session_id, owner_id)


def skipped_with(variable: Variable, owner_id: str) -> Failure:
    """Why a call or block is skipped that needs a variable which was skipped."""
    root = variable.failure.root_call_id if variable.failure is not None else ""
    return Failure(
        type=errors.SKIPPED.type,
        message=f"{variable.id!r}, which it needs, was skipped: the condition of {root} does not hold",
        session_id=variable.session_id,
        call_id=owner_id,
        variable_id=variable.id,
        cause_type=errors.SKIPPED.type,
        cause_call_id=root,
    )
