"""Parrot: the whole graph is sent at its arrival, by the SDK, as an application would send it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import httpx

import parrot as P  # noqa: N812 - as its users write it
from parrot.background import background
from parrot.connections import pool
from parrot.info import CallInfo
from parrot.template import literal
from parrot_bench import ablations, network
from parrot_bench.graphs import Application, Call, Ref, Text
from parrot_bench.stack import ParrotStack
from parrot_bench.systems.base import CallOutcome, Outcome, Say, Settings, System, Unavailable, wrong_count

Variable = P.SemanticVariable[str]

OUTPUT: Final = "output"
FUNCTIONS: Final = 4096
"""Functions that are kept made, as a program makes them once."""
PROBE_S: Final = 10.0


def make(name: str, settings: Settings) -> System:
    """Parrot, or Parrot with one of its features off.

    Raises:
        KeyError: there is no such system.
    """
    given = {**ablations.environment(name), **settings.environment}
    return Parrot(name, replace(settings, environment=given))


class Parrot(System):
    """A stack of its own, or a server that runs already."""

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name, settings)
        self._stack: ParrotStack | None = None
        self._url = settings.url
        self._ended: dict[str, _Ended] = {}

    async def start(self, say: Say) -> None:
        """Starts the stack; of a server that runs already, sees that it does.

        Raises:
            Unavailable: it can't be had.
        """
        if self.settings.rtt_ms:
            # All sessions of this process share connections, which are at one distance.
            await background().arun(_at_distance(self.settings.rtt_ms))
        if self.settings.url:
            await self._check_running()
        else:
            self._stack = await ParrotStack.start(self.name, self.settings, say)
            self._url = self._stack.url

    async def stop(self) -> None:
        """Stops the stack, if it is ours."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.stop()

    async def run(self, application: Application) -> Outcome:
        """Sends the whole graph, and waits for the finals."""
        began = Began()
        try:
            async with P.Session(
                self._url, label=application.name, criteria=application.objective
            ) as session:
                variables = _submit(application, session)
                finals = [application.call(name) for name in application.finals]
                heard = await asyncio.gather(*(_hear(call, variables[call.name], began) for call in finals))
                e2e_ms = began.now_ms()
        except P.ParrotError as error:
            return Outcome(application.name, began.now_ms(), error=f"{type(error).__name__}: {error}")
        streamed = {call.name: times for call, times in zip(finals, heard, strict=True) if call.streamed}
        self._ended[application.name] = _Ended(session, began, streamed)
        outputs = {name: variables[name].content or "" for name in application.finals}
        return Outcome(application.name, e2e_ms, outputs=outputs)

    async def account(self, application: Application, outcome: Outcome) -> Outcome:
        """With the calls, as the server tells of them."""
        ended = self._ended.pop(application.name, None)
        if ended is None or outcome.error:
            return outcome
        try:
            info = await ended.session.ainfo()
        except P.ParrotError as error:
            return replace(outcome, error=f"{type(error).__name__}: {error}")
        calls = tuple(_outcome(call, ended.began, ended.streamed) for call in info.calls)
        return replace(outcome, calls=calls, error=_wrong(application, calls))

    def pids(self) -> frozenset[int]:
        """The stack's command."""
        return frozenset({self._stack.pid} if self._stack is not None else ())

    async def _check_running(self) -> None:
        if self.settings.environment:
            raise Unavailable("a server that runs already is not started anew with other settings")
        try:
            async with httpx.AsyncClient(timeout=PROBE_S, trust_env=False) as client:
                answer = await client.get(f"{self._url}/v1/engines")
                ready = [e for e in answer.raise_for_status().json()["engines"] if e["state"] == "ready"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise Unavailable(f"no Parrot server answers at {self._url}: {error}") from None
        if len(ready) != self.settings.engines:
            raise Unavailable(
                f"the server at {self._url} has {len(ready)} engines, and all systems are to have "
                f"{self.settings.engines}; say --engines {len(ready)}"
            )


class Began:
    """The moment an application was begun, on this process's clock and on that of the wall."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()
        self.unix_ms = time.time() * 1000

    def now_ms(self) -> float:
        """Since then."""
        return (time.perf_counter() - self._at_s) * 1000


@dataclass(frozen=True, slots=True)
class _Ended:
    """An application that ran, of which the server is still to be asked.

    Attributes:
        streamed: of calls that were read as they were written, when the first token and the last were here.
    """

    session: P.Session
    began: Began
    streamed: Mapping[str, tuple[float, float]]


async def _at_distance(rtt_ms: float) -> None:
    await pool().use(network.client(rtt_ms))


@lru_cache(FUNCTIONS)
def _function(name: str, template: str, output_tokens: int) -> P.Function:
    sampling = P.SamplingConfig(
        temperature=0, max_gen_length=output_tokens, min_tokens=output_tokens, ignore_tokenizer_eos=True
    )
    return P.define(name, template, outputs={OUTPUT: P.Output(sampling)})


def _submit(application: Application, session: P.Session) -> Mapping[str, Variable]:
    """Adds all calls to the session, which sends them together; each call's output by its name."""
    given: dict[str, Variable] = {}
    made: dict[str, Variable] = {}
    for call in application.calls:
        inputs: dict[str, Variable] = {}
        pieces: list[str] = []
        for segment in call.prompt:
            if isinstance(segment, Text) and not segment.name:
                pieces.append(literal(segment.text))
                continue
            name, variable = _input(segment, given, made)
            inputs[name] = variable
            pieces.append(f"{{{{{name}}}}}")
        template = "".join((*pieces, f"{{{{output:{OUTPUT}}}}}"))
        made[call.name] = _function(call.name, template, call.output_tokens)(session=session, **inputs)
    return made


def _input(
    segment: Text | Ref, given: dict[str, Variable], made: Mapping[str, Variable]
) -> tuple[str, Variable]:
    """An input's placeholder and variable; a text that several calls read is sent once."""
    if isinstance(segment, Ref):
        return f"of_{segment.call}", made[segment.call]
    name = f"text_{segment.name}"
    if given.get(name) is None:
        given[name] = P.variable(name, segment.text)
    return name, given[name]


async def _hear(call: Call, variable: Variable, began: Began) -> tuple[float, float]:
    """When its first token and its last were here."""
    if not call.streamed:
        await variable.aget()
        return began.now_ms(), began.now_ms()
    first_ms = 0.0
    async for _ in variable.astream():
        first_ms = first_ms or began.now_ms()
    return first_ms or began.now_ms(), began.now_ms()


def _outcome(call: CallInfo, began: Began, streamed: Mapping[str, tuple[float, float]]) -> CallOutcome:
    end_ms = (call.ended_unix_ms or 0) - began.unix_ms
    first_ms, end_ms = streamed.get(call.name, (end_ms - call.decode_ms, end_ms))
    return CallOutcome(
        call.name,
        # Who streams counts from when it asked.
        0.0 if call.name in streamed else call.accepted_unix_ms - began.unix_ms,
        first_ms,
        end_ms,
        call.prompt_tokens,
        call.output_tokens,
        call.cached_tokens,
        call.engine,
    )


def _wrong(application: Application, calls: tuple[CallOutcome, ...]) -> str:
    """Why an application does not count; empty: it counts."""
    wrote = {call.name: call.output_tokens for call in calls}
    for call in application.calls:
        if why := wrong_count(call, wrote.get(call.name, 0)):
            return why
    return ""
