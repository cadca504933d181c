"""Where a session's time went."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from parrot_gateway import resources
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.gateway import GatewayDep, answer
from parrot_gateway.trace_models import SessionTrace, session_trace
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.critical_path import analyse
from parrot_runtime.critical_path.messages import times_of

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=StrictRoute)

_ANALYST: Final = ThreadPoolExecutor(1, "trace")
"""Of thousands of calls an analysis computes for a second: one at a time, beside all else that is served."""


@router.get("/{session_id}/trace", response_model=SessionTrace)
async def get_trace(gateway: GatewayDep, session_id: str) -> Response:
    """The session's critical path, from its begin to its end or until now, and what would shorten it."""
    found = await gateway.manager.get_session(session_id)
    return await asyncio.get_running_loop().run_in_executor(_ANALYST, _traced, found, time.time() * 1e3)


def _traced(found: manager_pb2.GetSessionResponse, now_ms: float) -> Response:
    state = resources.session(found.session).state
    return answer(session_trace(found.session, state, analyse(times_of(found), now_ms)))
