"""Calls: submitted in batches, and cancelled."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from fastapi.responses import Response

from parrot_gateway import models, resources
from parrot_gateway.bodies import StrictRoute
from parrot_gateway.compiled import Compiled
from parrot_gateway.compiling import blocks_of, calls_of, compiled_calls
from parrot_gateway.gateway import GatewayDep, answer
from parrot_gateway.headers import KeyDep
from parrot_gateway.locating import locate
from parrot_gateway.manager_client import new_key
from parrot_gateway.new_blocks import NewBatch, NewCalls
from parrot_gateway.new_calls import NewCall
from parrot_proto.manager.v1 import manager_pb2
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
    body: Annotated[NewCalls, Body(openapi_examples=_EXAMPLES)],
) -> Response:
    """Adds calls and blocks to the session: all of them, or none. They are stored when the answer comes."""
    compiled = await compiled_calls(body, key)
    try:
        taken = await gateway.manager.submit_calls(
            session_id,
            compiled.calls,
            compiled.values,
            key or new_key(),
            blocks=compiled.blocks,
            wanted=compiled.wanted,
        )
    except Fault as fault:
        raise locate(fault, body) from None
    return answer(_accepted(body, compiled, taken), 201)


@router.post("/{call_id}/cancel", response_model=models.CancelledCalls)
async def cancel_call(
    gateway: GatewayDep,
    session_id: str,
    call_id: str,
    subtree: Annotated[
        bool, Query(description="cancel too what only this call needs, up to the beginning")
    ] = False,
) -> Response:
    """Cancels a call or block that has not ended, and what depends on it."""
    call_ids = await gateway.manager.cancel_calls(session_id, [call_id], subtree=subtree)
    return answer(models.CancelledCalls(call_ids=call_ids))


def _accepted(
    sent: NewBatch | NewCall, compiled: Compiled, taken: manager_pb2.SubmitCallsResponse
) -> models.AcceptedCalls:
    calls = zip(taken.call_ids, calls_of(sent), compiled.placeholders, strict=True)
    blocks = zip(taken.block_ids, blocks_of(sent), compiled.blocks, strict=True)
    return models.AcceptedCalls(
        calls=[
            models.AcceptedCall(id=call_id, name=call.name, placeholders=placeholders)
            for call_id, call, placeholders in calls
        ],
        blocks=[
            models.AcceptedBlock(id=block_id, name=block.name, kind=block.kind, outputs=_outputs(made))
            for block_id, block, made in blocks
        ],
    )


def _outputs(block: manager_pb2.NewBlock) -> list[models.Edge]:
    """The variables of the session that a block makes."""
    if block.HasField("select"):
        return resources.edges(
            [manager_pb2.Edge(name=block.select.name, variable_id=block.select.variable_id)]
        )
    made = block.map.collected if block.HasField("map") else block.loop.results
    return [models.Edge(name=found.name, semantic_var_id=found.variable_id) for found in made]
