"""The core's words are the contract's."""

from __future__ import annotations

from enum import IntEnum

import pytest

from parrot_manager.core import model
from parrot_proto.common.v1 import common_pb2


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (model.SessionState, common_pb2.SessionState, "SESSION_STATE_"),
        (model.CallState, common_pb2.CallState, "CALL_STATE_"),
        (model.VariableState, common_pb2.VariableState, "VARIABLE_STATE_"),
        (model.AttemptState, common_pb2.AttemptState, "ATTEMPT_STATE_"),
    ],
)
def test_states_have_the_contracts_names_and_numbers(
    ours: type[IntEnum], theirs: object, prefix: str
) -> None:
    named = {f"{prefix}{state.name}": state.value for state in ours}
    assert {f"{prefix}UNSPECIFIED": 0, **named} == dict(theirs.items())  # type: ignore[attr-defined]
