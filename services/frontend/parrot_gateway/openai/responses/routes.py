"""/v1/responses: made, read again, followed from any event on, cancelled, deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from parrot_gateway.bodies import StrictRoute
from parrot_gateway.gateway import Gateway, GatewayDep
from parrot_gateway.headers import KeyDep
from parrot_gateway.openai.agents import AgentDep
from parrot_gateway.openai.responses.asked import NewResponse
from parrot_gateway.openai.responses.beginning import start
from parrot_gateway.openai.responses.ids import ResponseId
from parrot_gateway.openai.responses.items import with_ids
from parrot_gateway.openai.responses.record import not_found
from parrot_gateway.openai.responses.resource import resource
from parrot_gateway.openai.responses.running import cancelled, delete
from parrot_gateway.openai.responses.standing import Standing, standing_of
from parrot_gateway.openai.responses.streaming import FROM_THE_START, ResponseStream, beyond
from parrot_runtime import errors
from parrot_runtime.errors import Fault

LISTED: Final = 100

router = APIRouter(prefix="/v1/responses", tags=["openai"], route_class=StrictRoute)

_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "a response, or with `stream` its events",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


@router.post("", responses=_ANSWER, response_class=Response)
async def create_response(
    request: Request, gateway: GatewayDep, agent: AgentDep, key: KeyDep, body: NewResponse
) -> Response:
    """Makes a response. Unless in the background or under a key, it ends with the client's going away."""
    running = await start(gateway, body, key, agent)
    if body.stream:
        return running.stream()
    if body.background:
        return _json(resource(running.standing.told))
    return await running.whole(request)


@router.get("/{response_id}", responses=_ANSWER, response_class=Response)
async def get_response(
    gateway: GatewayDep,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[
        int | None, Query(ge=0, description="the sequence_number after which the stream goes on")
    ] = None,
) -> Response:
    """A response as it is, or its events from the first, or from `starting_after`, on."""
    found = await _find(gateway, response_id)
    if not stream:
        return _json(resource(found.told))
    after = FROM_THE_START if starting_after is None else starting_after
    if found.last is not None and after > found.last:
        raise beyond(after, found.last)
    return ResponseStream(gateway, found, after=after)


@router.delete("/{response_id}")
async def delete_response(gateway: GatewayDep, response_id: str) -> Response:
    """Deletes a response with all that is kept of it; what has not finished is cancelled."""
    found = await _find(gateway, response_id)
    await delete(gateway, found)
    return _json({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel_response(gateway: GatewayDep, response_id: str) -> Response:
    """Cancels a background response, and frees what it takes up; one that has ended stays as it is."""
    found = await _find(gateway, response_id)
    if not found.told.record.background:
        raise Fault(
            errors.INVALID_REQUEST,
            "only a background response is cancelled so; to cancel this one, close its connection",
            field="response_id",
        )
    return _json(resource((await cancelled(gateway, found)).told))


@router.get("/{response_id}/input_items")
async def list_input_items(
    gateway: GatewayDep,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str, Query(description="the id of the item after which the list goes on")] = "",
) -> Response:
    """The items a response was made from, those of the responses before it among them."""
    found = await _find(gateway, response_id)
    told = found.told
    items = [*told.record.history, *with_ids(told.record.input, told.response)]
    rest = _after(items if order == "asc" else items[::-1], after)
    page = rest[:limit]
    return _json(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(rest) > limit,
        }
    )


def _after(items: Sequence[dict[str, Any]], item_id: str) -> Sequence[dict[str, Any]]:
    if not item_id:
        return items
    place = next((place for place, item in enumerate(items) if item["id"] == item_id), None)
    if place is None:
        raise Fault(errors.INVALID_REQUEST, "after is the id of none of these items", field="after")
    return items[place + 1 :]


async def _find(gateway: Gateway, response_id: str) -> Standing:
    response = ResponseId.parse(response_id)
    if response is None:
        raise not_found(response_id)
    return await standing_of(gateway, response)


def _json(made: dict[str, Any]) -> Response:
    return Response(json.dumps(made, ensure_ascii=False), media_type="application/json")
