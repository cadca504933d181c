"""Whether the gateway lives, and whether it can serve."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from parrot_gateway import models
from parrot_gateway.gateway import GatewayDep, answer
from parrot_gateway.readiness import reasons
from parrot_runtime import errors
from parrot_runtime.errors import Fault

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=models.Health)
async def healthz() -> Response:
    """That the process answers."""
    return answer(models.Health(status="ok"))


@router.get("/readyz", response_model=models.Health)
async def readyz(gateway: GatewayDep) -> Response:
    """That a manager, its store and the bus can be reached; else a 503 that says which can't."""
    if missing := await reasons(gateway):
        raise Fault(errors.UNAVAILABLE, "; ".join(missing), retry_after_ms=1000)
    return answer(models.Health(status="ready"))
