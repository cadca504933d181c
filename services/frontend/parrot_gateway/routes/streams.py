"""Streams: a variable's text as it is written."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import Response

from parrot_gateway.events import EventStream, offset_of, variable_events
from parrot_gateway.gateway import GatewayDep
from parrot_gateway.headers import WantedDep

router = APIRouter(prefix="/v1/sessions/{session_id}/variables/{variable_id}/stream", tags=["variables"])

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`delta` events {offset, text}, then one `done` {state, size_bytes} or one `error`, "
        "a problem; comments in between. Their ids resume the stream as Last-Event-ID.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: s03-5f0c.../v-1:5\nevent: delta\ndata: {"offset":0,"text":"Hello"}\n\n'
                'id: s03-5f0c.../v-1:5\nevent: done\ndata: {"state":"ready","size_bytes":5}\n\n',
            }
        },
    }
}


@router.get("", status_code=200, response_class=EventStream, responses=_ANSWERS)
async def stream_variable(
    gateway: GatewayDep,
    session_id: str,
    variable_id: str,
    wanted: WantedDep,
    last_event_id: Annotated[str, Header(description="go on after this event")] = "",
) -> Response:
    """The variable's text from its start, or from after `Last-Event-ID`, until its end."""
    offset_bytes = offset_of(last_event_id, session_id, variable_id)
    return EventStream(
        lambda: variable_events(
            gateway.watch(session_id, variable_id, offset_bytes, wanted),
            session_id,
            gateway.closing,
            gateway.settings.heartbeat_s,
        )
    )
