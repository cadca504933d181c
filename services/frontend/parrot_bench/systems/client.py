"""What a client can do: its graph in asyncio, against vLLM's own servers."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from parrot_bench import network
from parrot_bench.graphs import Application, Call
from parrot_bench.serving import Endpoints, Variant, endpoints
from parrot_bench.systems.base import Outcome, Say, Settings, System, Unavailable
from parrot_bench.systems.completions import Api, Completion
from parrot_bench.systems.execution import execute
from parrot_bench.systems.priorities import priorities
from parrot_bench.systems.routers import LeastBusy, PrefixAware, RoundRobin, Router

SMALL_STEP_TOKENS: Final = 128
"""A step then takes about 0.1 s on two cores: so long at most does a prompt hold others' tokens up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a client does it.

    Attributes:
        router: among several engines.
    """

    variant: Variant = field(default_factory=Variant)
    router: type[Router] = LeastBusy


PLANS: Final[Mapping[str, Plan]] = {
    "client": Plan(),
    "client-priority": Plan(Variant(priority=True)),
    "client-ngram": Plan(Variant(ngram=True)),
    "client-small-batch": Plan(Variant(priority=True, step_tokens=SMALL_STEP_TOKENS)),
    "client-round-robin": Plan(router=RoundRobin),
    "client-prefix-aware": Plan(router=PrefixAware),
    "client-priority-prefix-aware": Plan(Variant(priority=True), PrefixAware),
}


def make(name: str, settings: Settings) -> System:
    """The system of this name.

    Raises:
        KeyError: there is none.
    """
    return Client(name, settings, PLANS[name])


class OnEndpoints(System):
    """A baseline on servers that are shared with others of its variant."""

    def __init__(self, name: str, settings: Settings, plan: Plan) -> None:
        super().__init__(name, settings)
        self.plan = plan
        self.router: Router
        self.found: Endpoints
        self._stack = AsyncExitStack()
        self._pids: frozenset[int] = frozenset()

    async def start(self, say: Say) -> None:
        """Starts its servers, or finds those that run."""
        if self.settings.engines < 2 and self.plan.router is not LeastBusy:
            raise Unavailable("it places requests on several engines, and there is one: take --engines 2")
        try:
            servers = endpoints(self.plan.variant, self.settings, say)
            self.found = await self._stack.enter_async_context(servers)
            self.router = self.plan.router(len(self.found.urls))
            self.connect(await self._stack.enter_async_context(network.client(self.settings.rtt_ms)))
        except BaseException:
            await self.stop()
            raise
        self._pids = self.found.pids

    @abstractmethod
    def connect(self, client: httpx.AsyncClient) -> None:
        """Makes what asks the servers by this client, which is closed for it."""

    async def stop(self) -> None:
        """Gives them up."""
        self._pids = frozenset()
        await self._stack.aclose()

    def pids(self) -> frozenset[int]:
        """Of the servers that were started."""
        return self._pids

    @property
    def extra(self) -> dict[str, Any]:
        """Of every request: on servers that it shares, no system finds what another one had computed."""
        return {"cache_salt": self.name}


class Client(OnEndpoints):
    """Every call is sent as soon as what it reads is there."""

    def __init__(self, name: str, settings: Settings, plan: Plan) -> None:
        super().__init__(name, settings, plan)
        self._arrivals = itertools.count()
        self._http: httpx.AsyncClient

    def connect(self, client: httpx.AsyncClient) -> None:
        """Uses the client as it is."""
        self._http = client

    async def run(self, application: Application) -> Outcome:
        """Runs one application to its end."""
        arrived = next(self._arrivals)
        ranks = priorities(application, arrived) if self.plan.variant.priority else {}

        async def send(call: Call, prompt: str) -> tuple[Completion, str]:
            extra = self.extra | ({"priority": ranks[call.name]} if ranks else {})
            with self.router.placed(prompt) as engine:
                api = Api(self._http, self.found.urls[engine], self.found.model)
                return await api.complete(call, prompt, extra), str(engine)

        return await execute(application, send)
