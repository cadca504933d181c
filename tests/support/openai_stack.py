"""All of Parrot before a scripted model: what is sent to it is known, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel
from tools.scripted_upstream import ScriptedUpstream

from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_runtime.values.bus import connected
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.manager import ManagerUnderTest, eventually, serving
from tests.support.managers import Service

MODEL = "scripted"
SIM = "sim"


@dataclass(slots=True)
class OpenAIStack:
    """A manager, gateways, and an engine on a server that follows scripts.

    A prompt that says `script:NAME` gets the script of that name.
    """

    upstream: ScriptedUpstream
    manager: ManagerUnderTest
    nats_url: str
    _stack: AsyncExitStack
    gateways: list[RunningGateway] = field(default_factory=list)
    engines: dict[str, Service] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The first gateway's base URL, as OpenAI's clients take it."""
        return f"{self.gateways[0].url}/v1"

    def prompts(self) -> list[str]:
        """The prompts the model got, in order."""
        return [request["prompt"] for request in self.upstream.state.requests]

    async def gateway(self, *flags: str) -> RunningGateway:
        """Another gateway."""
        settings = ("--heartbeat-s", "0.2", "--recheck-s", "0.5", *flags)
        made = await self._stack.enter_async_context(
            running_gateway(self.manager.address, self.nats_url, *settings)
        )
        self.gateways.append(made)
        return made

    async def engine(self, engine_id: str = "e-1", *flags: str) -> Service:
        """Another engine, attached; `flags`: of another server than the scripted one."""
        own = ("--model", MODEL, "--openai-base-url", self.upstream.url)
        source = ("--backend", "openai", *(flags or own))
        here = ("--manager-address", self.manager.address, "--nats-url", self.nats_url)
        made = Service(["parrot_engine", "--engine-id", engine_id, *source, *here])
        self._stack.push_async_callback(made.kill)
        await made.start()
        await self.manager.client.engine_ready(engine_id)
        self.engines[engine_id] = made
        return made


@asynccontextmanager
async def openai_stack(nats_url: str, gateways: int = 1) -> AsyncIterator[OpenAIStack]:
    """A stack for the length of the `async with`."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(ScriptedUpstream(model=MODEL))
        upstream.define("default", [{"text": "Hello"}, {"text": " there"}])
        bus = await stack.enter_async_context(connected(nats_url, "manager", 5))
        manager = await stack.enter_async_context(serving(MemoryStore(), bus))
        made = OpenAIStack(upstream, manager, nats_url, stack)
        await made.engine()
        for _ in range(gateways):
            await made.gateway()
        yield made


def says(script: str, *system: str) -> list[ChatCompletionMessageParam]:
    """A conversation that a script answers."""
    made: list[ChatCompletionMessageParam] = [{"role": "system", "content": text} for text in system]
    return [*made, {"role": "user", "content": f"script:{script}"}]


def session_of(answer: BaseModel) -> str:
    """The session a chat or completion was made in."""
    found: Any = answer.model_extra
    return str(found["parrot"]["session_id"])


async def ended(stack: OpenAIStack, session_id: str) -> common_pb2.SessionState.ValueType:
    """The state of a session once it has ended."""

    async def look() -> bool:
        return (await stack.manager.client.session(session_id)).session.ended_unix_ms > 0

    await eventually(look)
    return (await stack.manager.client.session(session_id)).session.state
