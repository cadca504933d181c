"""Calls that the client runs: claimed by its workers, renewed, and answered with what they made."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from parrot_gateway import claim_models as models
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.closing import GatewayClosing
from parrot_gateway.connected import while_connected
from parrot_gateway.gateway import Gateway, GatewayDep, answer
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, check_text, too_large

LONGEST_WAIT_S: Final = 300.0
SLICE_S: Final = 20.0
"""A manager is asked to wait for so long at once, so that another is found if it goes."""

router = APIRouter(
    prefix="/v1/sessions/{session_id}/calls/{call_id}", tags=["native calls"], route_class=StrictRoute
)


@router.post("/claim", response_model=models.ClaimResource)
async def claim_call(  # noqa: PLR0917 - named by the path and the query
    request: Request,
    gateway: GatewayDep,
    session_id: str,
    call_id: str,
    body: models.Worker,
    wait_s: Annotated[
        float,
        Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="how long to wait for its inputs"),
    ] = 30.0,
) -> Response:
    """Claims a native call when its inputs are there: then they are this worker's to run, and no other's.

    The same worker may claim again what it has, and gets it again. When the call has ended, or is another
    worker's, that is a 409. A claim ends with its lease, and fails the call, unless it is renewed.
    """
    check_name(body.worker, "worker")
    return await while_connected(request, _claim(gateway, session_id, call_id, body.worker, wait_s))


@router.post("/renew", response_model=models.LeaseResource)
async def renew_claim(gateway: GatewayDep, session_id: str, call_id: str, body: models.Worker) -> Response:
    """Keeps a claim for another lease. A 409 says to stop: the call has ended, or is another worker's."""
    check_name(body.worker, "worker")
    lease_ms = await gateway.manager.renew_claim(session_id, call_id, body.worker)
    return answer(models.LeaseResource(lease_s=lease_ms / 1000))


@router.post("/result", response_model=models.ResultResource)
async def complete_call(gateway: GatewayDep, session_id: str, call_id: str, body: models.Result) -> Response:
    """Hands in the outputs of a claimed call, or why there are none. Sent again, the first one counts."""
    check_name(body.worker, "worker")
    request = manager_pb2.CompleteCallRequest(session_id=session_id, call_id=call_id, worker=body.worker)
    if body.error is not None:
        request.error = _shown(body.error.message)
    elif body.outputs is not None:
        request.outputs.CopyFrom(_outputs(body.outputs))
    state = await gateway.manager.complete_call(request)
    return answer(models.ResultResource(state="done" if state == common_pb2.CALL_STATE_DONE else "failed"))


async def _claim(gateway: Gateway, session_id: str, call_id: str, worker: str, wait_s: float) -> Response:
    deadline = time.monotonic() + wait_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        asked = gateway.manager.claim_call(session_id, call_id, worker, min(left_s, SLICE_S))
        try:
            claimed = await gateway.closing.interruptible(asked)
        except GatewayClosing:
            return answer(models.ClaimResource(state="waiting"))
        if claimed.claimed:
            inputs = {given.name: given.text for given in claimed.inputs}
            lease_s = claimed.lease_ms / 1000
            return answer(models.ClaimResource(state="claimed", inputs=inputs, lease_s=lease_s))
        if time.monotonic() >= deadline:
            return answer(models.ClaimResource(state="waiting"))


def _outputs(outputs: dict[str, str]) -> manager_pb2.NativeOutputs:
    if len(outputs) > limits.PLACEHOLDERS:
        raise too_large("outputs", len(outputs), limits.PLACEHOLDERS, unit="entries")
    size = 0
    for name, text in outputs.items():
        check_name(name, "outputs")
        check_text(text, f"outputs.{name}", limit_bytes=limits.VALUE_BYTES)
        size += len(text.encode())
    if size > limits.BATCH_BYTES:
        raise too_large("outputs", size, limits.BATCH_BYTES)
    return manager_pb2.NativeOutputs(
        texts=[manager_pb2.NamedText(name=name, text=text) for name, text in outputs.items()]
    )


def _shown(message: str) -> str:
    check_text(message, "error.message")
    if not message:
        raise Fault(errors.INVALID_REQUEST, "error.message is empty; say what failed", field="error.message")
    return errors.clip(message)
