"""Sessions: made, looked at, ended."""

from __future__ import annotations

import math
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parrot_gateway import models, resources
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.gateway import GatewayDep, answer
from parrot_gateway.headers import KeyDep, criteria_of
from parrot_gateway.listing import SessionList, SessionStateName, session_list, state_of
from parrot_runtime import limits
from parrot_runtime.text import check_name

LISTED: Final = 50

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=StrictRoute)


@router.post("", status_code=201, response_model=models.SessionResource)
async def create_session(gateway: GatewayDep, key: KeyDep, body: models.NewSession | None = None) -> Response:
    """Makes a session, which calls are then added to."""
    sent = body or models.NewSession()
    check_name(sent.label, "label")
    timeout_ms = 0 if sent.timeout_s is None else max(1, math.ceil(sent.timeout_s * 1000))
    wanted = sent.criteria
    session = await gateway.manager.create_session(
        sent.label,
        timeout_ms,
        key=key,
        criteria=criteria_of(wanted.kind, wanted.deadline_unix_ms) if wanted is not None else None,
        lazy=sent.lazy,
    )
    return answer(resources.session(session), 201)


@router.get("", response_model=SessionList)
async def list_sessions(
    gateway: GatewayDep,
    state: Annotated[SessionStateName | None, Query(description="only sessions in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=limits.LISTED_SESSIONS, description="of one page")] = LISTED,
    after: Annotated[str, Query(description="the `next` of the page before")] = "",
) -> Response:
    """The tenant's sessions, the newest first, ended ones too for as long as they are kept."""
    return answer(session_list(await gateway.manager.list_sessions(state_of(state), limit, after)))


@router.get("/{session_id}", response_model=models.SessionGraph)
async def get_session(gateway: GatewayDep, session_id: str) -> Response:
    """The session's calls and variables, their states, and where the time went."""
    return answer(resources.graph(await gateway.manager.get_session(session_id)))


@router.delete("/{session_id}", response_model=models.SessionResource)
async def close_session(gateway: GatewayDep, session_id: str) -> Response:
    """Ends the session; what is unfinished is cancelled."""
    return answer(resources.session(await gateway.manager.close_session(session_id)))
