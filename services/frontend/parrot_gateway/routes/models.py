"""What can be asked for, and who serves it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from parrot_gateway import models, resources
from parrot_gateway.gateway import GatewayDep, answer

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models", response_model=models.ModelList)
async def list_models(gateway: GatewayDep) -> Response:
    """The models served now."""
    found = await gateway.manager.list_models()
    return answer(models.ModelList(data=[resources.model(model) for model in found]))


@router.get("/engines", response_model=models.EngineList)
async def list_engines(gateway: GatewayDep) -> Response:
    """The engines the manager knows."""
    found = await gateway.manager.list_engines()
    return answer(models.EngineList(engines=[resources.engine(engine) for engine in found]))
