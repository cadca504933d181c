"""Calls: submitted in batches, and cancelled."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from fastapi.responses import Response

from parrot_gateway import models
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.compiling import calls_of, compiled_calls, locate
from parrot_gateway.gateway import GatewayDep, answer
from parrot_gateway.headers import KeyDep
from parrot_gateway.manager_client import new_key
from parrot_runtime.errors import Fault

router = APIRouter(prefix="/v1/sessions/{session_id}/calls", tags=["calls"], route_class=StrictRoute)

_EXAMPLES = {
    "map-reduce": {
        "summary": "two calls, the second of which reads what the first makes",
        "value": {
            "calls": [
                {
                    "name": "summarize",
                    "prompt": "Summarize: {{text}}\nSummary: {{summary}}",
                    "placeholders": [
                        {"name": "text", "in_out": "in", "value": "Once upon a time ..."},
                        {
                            "name": "summary",
                            "in_out": "out",
                            "semantic_var_id": "summary-1",
                            "sampling": {"max_tokens": 48, "temperature": 0},
                        },
                    ],
                },
                {
                    "name": "title",
                    "prompt": "Give this a title: {{input:summary}}\nTitle: {{output:title}}",
                    "placeholders": [
                        {"name": "summary", "in_out": "in", "semantic_var_id": "summary-1"},
                        {"name": "title", "in_out": "out", "transforms": ["strip"]},
                    ],
                },
            ]
        },
    },
    "one call": {
        "value": {
            "prompt": "Write Python code of {{input:task}}.\nCode: {{output:code}}",
            "placeholders": [
                {"name": "task", "in_out": "in", "value": "a snake game"},
                {"name": "code", "in_out": "out"},
            ],
        }
    },
}


@router.post("", status_code=201, response_model=models.AcceptedCalls)
async def submit_calls(
    gateway: GatewayDep,
    session_id: str,
    key: KeyDep,
    body: Annotated[models.NewCalls, Body(openapi_examples=_EXAMPLES)],
) -> Response:
    """Adds calls to the session: all of them, or none. They are stored when the answer comes."""
    compiled = await compiled_calls(body, key)
    try:
        call_ids = await gateway.manager.submit_calls(
            session_id, compiled.calls, compiled.values, key or new_key()
        )
    except Fault as fault:
        raise locate(fault, body) from None
    accepted = [
        models.AcceptedCall(id=call_id, name=call.name, placeholders=placeholders)
        for call_id, call, placeholders in zip(call_ids, calls_of(body), compiled.placeholders, strict=True)
    ]
    return answer(models.AcceptedCalls(calls=accepted), 201)


@router.post("/{call_id}/cancel", response_model=models.CancelledCalls)
async def cancel_call(
    gateway: GatewayDep,
    session_id: str,
    call_id: str,
    subtree: Annotated[
        bool, Query(description="cancel too what only this call needs, up to the beginning")
    ] = False,
) -> Response:
    """Cancels a call that has not ended, and what depends on it."""
    call_ids = await gateway.manager.cancel_calls(session_id, [call_id], subtree=subtree)
    return answer(models.CancelledCalls(call_ids=call_ids))
