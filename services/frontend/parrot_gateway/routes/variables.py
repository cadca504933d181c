"""Variables: set, and waited for."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from parrot_gateway import models, resources
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.closing import GatewayClosing
from parrot_gateway.compiling import check_value
from parrot_gateway.connected import while_connected
from parrot_gateway.gateway import Gateway, GatewayDep, answer
from parrot_gateway.headers import WantedDep
from parrot_gateway.watch import Watch
from parrot_proto.manager.v1 import manager_pb2

LONGEST_WAIT_S = 300.0

router = APIRouter(
    prefix="/v1/sessions/{session_id}/variables/{variable_id}", tags=["variables"], route_class=StrictRoute
)


@router.put("", response_model=models.VariableSummary)
async def set_variable(
    gateway: GatewayDep, session_id: str, variable_id: str, body: models.VariableValue
) -> Response:
    """Gives a variable that no call makes its value, once."""
    check_value(body, variable_id)
    variable = await gateway.manager.set_variable(session_id, variable_id, body.value, body.name)
    return answer(resources.summary(variable))


@router.get("", response_model=models.VariableResource)
async def get_variable(  # noqa: PLR0917 - named by the path and the query
    request: Request,
    gateway: GatewayDep,
    session_id: str,
    variable_id: str,
    wanted: WantedDep,
    wait_s: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="how long to wait for its end")
    ] = 30.0,
) -> Response:
    """The variable at its end, or as it is when `wait_s` have passed."""
    if wait_s == 0:
        got = await gateway.manager.get_variable(session_id, variable_id, criteria=wanted)
        ready = resources.variable_state(got.variable) == "ready"
        return answer(resources.variable(got.variable, got.value if ready else None))
    return await while_connected(request, _await_end(gateway, session_id, variable_id, wait_s, wanted))


async def _await_end(
    gateway: Gateway, session_id: str, variable_id: str, wait_s: float, wanted: manager_pb2.Criteria | None
) -> Response:
    async with gateway.watch(session_id, variable_id, criteria=wanted) as watch:
        with suppress(GatewayClosing):
            await gateway.closing.interruptible(_until_end(watch, wait_s))
        # Whether or not there was a wait: what has ended is told with its value.
        end = watch.end
        return answer(resources.variable(watch.variable, end.text if end is not None else None))


async def _until_end(watch: Watch, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while watch.end is None and (left_s := deadline - time.monotonic()) > 0:
        await watch.next(left_s)
