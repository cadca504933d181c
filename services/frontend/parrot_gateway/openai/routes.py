"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from parrot_gateway.bodies import StrictRoute
from parrot_gateway.gateway import Gateway, GatewayDep
from parrot_gateway.headers import KeyDep
from parrot_gateway.manager_client import new_key
from parrot_gateway.openai.agents import Agent, AgentDep, Place, begun, place_of
from parrot_gateway.openai.answers import Narrator, RunStream, whole_answer
from parrot_gateway.openai.chat_answer import ChatNarrator
from parrot_gateway.openai.chat_request import NewChat, plan_chat
from parrot_gateway.openai.completion_answer import CompletionNarrator
from parrot_gateway.openai.completion_request import NewCompletion, plan_completion
from parrot_gateway.openai.generation import Generation
from parrot_gateway.openai.plans import digest_of, located
from parrot_gateway.openai.runs import Plan, Run, start
from parrot_runtime.errors import Fault

router = APIRouter(prefix="/v1", tags=["openai"], route_class=StrictRoute)

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the answer; with stream: true its chunks as events, the last of which is [DONE]. A "
        "failure is {error: {message, type, param, code, may_retry}}, of a stream as an event.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


@router.post("/chat/completions", responses=_ANSWERS)
async def create_chat_completion(
    request: Request, gateway: GatewayDep, key: KeyDep, agent: AgentDep, body: NewChat
) -> Response:
    """Answers a chat: as a session of its own, or as a call of the one that `parrot` names."""
    toolbox = body.toolbox
    plan = plan_chat(body, toolbox, key or new_key(), **_told(key, agent, body))
    run = await _started(gateway, plan, key)
    narrator = ChatNarrator(
        gateway,
        run,
        toolbox,
        model=body.model,
        logprobs=bool(body.logprobs),
        usage=body.wants_usage,
    )
    return await _answer(request, gateway, run, narrator, stream=bool(body.stream))


@router.post("/completions", responses=_ANSWERS)
async def create_completion(
    request: Request, gateway: GatewayDep, key: KeyDep, agent: AgentDep, body: NewCompletion
) -> Response:
    """Goes on after a prompt, or after each of several."""
    plan = plan_completion(body, key or new_key(), **_told(key, agent, body))
    run = await _started(gateway, plan, key)
    narrator = CompletionNarrator(gateway, run, body)
    return await _answer(request, gateway, run, narrator, stream=bool(body.stream))


def _told(key: str, agent: Agent, body: Generation) -> dict[str, Any]:
    """What of a plan the headers say, and a digest of the body under a key."""
    return {
        "digest": digest_of(body) if key else "",
        "place": place_of(body.parrot, agent, apart=bool(key)),
        "criteria": agent.criteria,
    }


async def _started(gateway: Gateway, plan: Plan, key: str) -> Run:
    async def within(place: Place) -> Run:
        return await start(gateway, replace(plan, place=place), key)

    try:
        return await begun(gateway, plan.place, within)
    except Fault as fault:
        raise located(fault) from None


async def _answer(
    request: Request, gateway: Gateway, run: Run, narrator: Narrator, *, stream: bool
) -> Response:
    if stream:
        return RunStream(gateway, run, narrator)
    return await whole_answer(request, gateway, run, narrator)
