"""A variable of the prototype's is set in one step, whoever dies meanwhile, and asked again."""

from __future__ import annotations

from typing import Any

import pytest

from parrot_gateway.prototype import variables
from parrot_gateway.prototype.identity import settable_id
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

SESSION = "s00-0000000000000001"
VARIABLE = settable_id("v-0000000000000001", "later")


class Manager:
    """Stands for a manager. That it has no other method is what is tested.

    Attributes:
        lost: so many requests are lost, each before it is heard.
        completed: the requests that were heard.
    """

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.completed: list[manager_pb2.CompleteCallRequest] = []

    async def get_variable(self, session_id: str, variable_id: str) -> manager_pb2.GetVariableResponse:
        """The variable, as it is."""
        made = manager_pb2.Variable(id=variable_id, producer_call_id="c-1")
        made.state = common_pb2.VARIABLE_STATE_READY if self.completed else common_pb2.VARIABLE_STATE_PENDING
        value = self.completed[0].outputs.texts[0].text if self.completed else ""
        return manager_pb2.GetVariableResponse(variable=made, value=value)

    async def complete_call(self, request: manager_pb2.CompleteCallRequest) -> None:
        """Takes a result."""
        if self.lost:
            self.lost -= 1
            raise Fault(errors.UNAVAILABLE, "nobody there")
        self.completed.append(request)


class Gateway:
    """A gateway before that manager."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager


async def test_a_variable_is_set_by_one_request_that_needs_no_claim() -> None:
    manager = Manager(lost=1)
    gateway: Any = Gateway(manager)
    with pytest.raises(Fault, match="nobody there"):
        await variables.set_content(gateway, SESSION, VARIABLE, "text")
    await variables.set_content(gateway, SESSION, VARIABLE, "text")
    await variables.set_content(gateway, SESSION, VARIABLE, "text")
    (request,) = manager.completed
    assert request.unclaimed
    assert [(text.name, text.text) for text in request.outputs.texts] == [("later", "text")]
    with pytest.raises(Fault) as caught:
        await variables.set_content(gateway, SESSION, VARIABLE, "other")
    assert caught.value.kind is errors.VARIABLE_ALREADY_SET
