"""What can be asked for, and who serves it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from parrot_gateway import models, resources
from parrot_gateway.gateway import GatewayDep, answer
from parrot_runtime import errors
from parrot_runtime.errors import Fault

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models", response_model=models.ModelList)
async def list_models(gateway: GatewayDep) -> Response:
    """The models served now."""
    found = await gateway.manager.list_models()
    return answer(models.ModelList(data=[resources.model(model) for model in found]))


@router.get("/models/{model_id:path}", response_model=models.ModelResource)
async def get_model(gateway: GatewayDep, model_id: str) -> Response:
    """One of the models served now."""
    for model in await gateway.manager.list_models():
        if model.id == model_id:
            return answer(resources.model(model))
    raise Fault(errors.NOT_FOUND, "no engine serves this model; /v1/models lists those that are served")


@router.get("/engines", response_model=models.EngineList)
async def list_engines(gateway: GatewayDep) -> Response:
    """The engines the manager knows."""
    found = await gateway.manager.list_engines()
    return answer(models.EngineList(engines=[resources.engine(engine) for engine in found]))
