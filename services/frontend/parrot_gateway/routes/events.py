"""What happens in a session, as it happens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import Response

from parrot_gateway.events import EventStream
from parrot_gateway.gateway import GatewayDep
from parrot_gateway.session_events import session_events

router = APIRouter(prefix="/v1/sessions/{session_id}/events", tags=["sessions"])

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Without `Last-Event-ID` first how the session is now (`session`, `call`, `block` and "
        "`variable` events, and `delta`s of what is being written, without ids), ended by `snapshot`; then "
        "each change and each piece of text, with ids that resume the stream on any gateway; `done` when the "
        "session has ended, or one `error`, a problem. Comments in between.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'event: session\ndata: {"id":"s03-5f0c...","state":"open"}\n\n'
                'id: s03-5f0c...:131072\nevent: snapshot\ndata: {"calls":0,"blocks":0,"variables":0}\n\n'
                "id: s03-5f0c...:1310721\nevent: delta\n"
                'data: {"semantic_var_id":"title","offset":0,"text":"The"}\n\n',
            }
        },
    }
}


@router.get("", status_code=200, response_class=EventStream, responses=_ANSWERS)
async def stream_events(
    gateway: GatewayDep,
    session_id: str,
    last_event_id: Annotated[str, Header(description="go on after this event")] = "",
) -> Response:
    """States, text and errors of all that the session holds, from now on or from after `Last-Event-ID`."""
    return EventStream(lambda: session_events(gateway, session_id, last_event_id))
