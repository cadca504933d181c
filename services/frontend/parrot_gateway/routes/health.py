"""Whether the gateway lives, and whether it can serve."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from parrot_gateway import models
from parrot_gateway.gateway import GatewayDep, answer
from parrot_runtime import errors
from parrot_runtime.errors import Fault

READY_S: Final = 2.0

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=models.Health)
async def healthz() -> Response:
    """That the process answers."""
    return answer(models.Health(status="ok"))


@router.get("/readyz", response_model=models.Health)
async def readyz(gateway: GatewayDep) -> Response:
    """That the manager and the bus can be reached; else a 503 that says which can't."""
    missing: list[str] = []
    try:
        await gateway.manager.list_models(READY_S)
    except Fault as fault:
        missing.append(f"the manager does not serve: {fault.message}")
    if not gateway.bus.client.is_connected:
        missing.append("the bus (NATS) can't be reached")
    if gateway.closing.begun:
        missing.append("this gateway is stopping")
    if missing:
        raise Fault(errors.UNAVAILABLE, "; ".join(missing), retry_after_ms=1000)
    return answer(models.Health(status="ready"))
