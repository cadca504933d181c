"""The application as a LangChain program: runnables over `langchain-openai`, against vLLM's own servers.

It is put together as LangChain's users put such programs together (https://docs.langchain.com): what is
ready is one `RunnablePassthrough.assign`, whose steps run at once; parts of the graph that have nothing to do
with one another are branches of a `RunnableParallel`; the rest follows in a `RunnableSequence`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import httpx
import openai
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_openai import OpenAI
from pydantic import SecretStr

from parrot_bench.graphs import Application, Call, Ref
from parrot_bench.systems.base import Outcome, Settings, System
from parrot_bench.systems.client import OnEndpoints, Plan
from parrot_bench.systems.completions import (
    EXCERPT_CHARS,
    NO_ANSWER,
    Completion,
    CompletionError,
    to_the_end,
)
from parrot_bench.systems.execution import Record

Texts = dict[str, str]
"""Outputs by call."""
Program = Runnable[Texts, Texts]
Ask = Callable[[Call, PromptValue], Awaitable[str]]
NO_KEY: Final = "none"
FAILURES: Final = (openai.OpenAIError, *NO_ANSWER)


def make(name: str, settings: Settings) -> System:
    """The system."""
    return LangChain(name, settings, Plan())


class LangChain(OnEndpoints):
    """Runs applications as LangChain programs."""

    def __init__(self, name: str, settings: Settings, plan: Plan) -> None:
        super().__init__(name, settings, plan)
        self._models: dict[tuple[int, bool], OpenAI] = {}

    def connect(self, client: httpx.AsyncClient) -> None:
        """Makes LangChain's models."""
        self._models = {
            (engine, streamed): OpenAI(
                model=self.found.model,
                base_url=url,
                api_key=SecretStr(NO_KEY),
                http_async_client=client,
                max_retries=0,
                temperature=0,
                streaming=streamed,
            )
            for engine, url in enumerate(self.found.urls)
            for streamed in (False, True)
        }

    async def run(self, application: Application) -> Outcome:
        """Runs one application to its end."""
        run = _Run(self)
        # Programs are written before they are run.
        program = composed(application.calls, run.ask)
        run.record = Record()
        try:
            await program.ainvoke({})
        except CompletionError as error:
            return run.record.outcome(application, error=str(error))
        finally:
            await run.give_up()
        return run.record.outcome(application)

    async def ask(self, call: Call, prompt: str) -> tuple[Completion, str]:
        """One call of a model, and the engine that it was sent to.

        Raises:
            CompletionError: it failed.
        """
        watch = Watch(call)
        with self.router.placed(prompt) as engine:
            model = self._models[engine, call.streamed].bind(
                max_tokens=call.output_tokens, extra_body=to_the_end(call) | self.extra
            )
            try:
                await model.ainvoke(prompt, config={"callbacks": [watch]})
            except FAILURES as error:
                why = " ".join(f"{type(error).__name__}: {error}".split())[:EXCERPT_CHARS]
                raise CompletionError(f"call {call.name}: {self.found.urls[engine]}: {why}") from error
        return watch.completion(), str(engine)


class _Run:
    """One run of a program: its record, and its calls that are open."""

    def __init__(self, system: LangChain) -> None:
        self.record = Record()
        self._system = system
        self._open: set[asyncio.Task[Any]] = set()

    async def ask(self, call: Call, prompt: PromptValue) -> str:
        """A step of the program."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        self._open.add(task)
        try:
            done, engine = await self._system.ask(call, prompt.to_string())
        finally:
            self._open.discard(task)
        self.record.note(call, done, engine)
        return done.text

    async def give_up(self) -> None:
        """Ends what is still open: where one of several branches fails, LangChain lets the others run on."""
        while self._open:
            for task in self._open:
                task.cancel()
            await asyncio.wait(self._open)


class Watch(AsyncCallbackHandler):
    """Sees when a call was sent, its first text came and it ended, and what it came to."""

    raise_error = True

    def __init__(self, call: Call) -> None:
        self._call = call
        self._began_s = self._ended_s = 0.0
        self._first_s: float | None = None
        self._result: LLMResult | None = None

    async def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **_: Any) -> None:
        """It is sent."""
        self._began_s = perf_counter()

    async def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **_: Any) -> None:
        """A piece of it is here."""
        if token and self._first_s is None:
            self._first_s = perf_counter()

    async def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """It is whole."""
        self._ended_s = perf_counter()
        self._result = response

    def completion(self) -> Completion:
        """What it came to.

        Raises:
            CompletionError: the server does not say how many tokens it wrote.
        """
        if self._result is None or not self._result.generations[0]:
            raise CompletionError(f"call {self._call.name} came to nothing")
        generation = self._result.generations[0][0]
        usage = (self._result.llm_output or {}).get("token_usage") or {}
        return Completion(
            text=generation.text,
            prompt_tokens=usage.get("prompt_tokens", 0),
            output_tokens=self._output_tokens(usage, generation.generation_info or {}),
            cached_tokens=None,
            began_s=self._began_s,
            first_s=(self._first_s or self._ended_s) if self._call.streamed else None,
            ended_s=self._ended_s,
        )

    def _output_tokens(self, usage: Mapping[str, int], info: Mapping[str, Any]) -> int:
        """Tokens it wrote. Of streams LangChain drops the usage: that its length ended it says the same."""
        if "completion_tokens" in usage:
            return usage["completion_tokens"]
        if self._call.streamed and info.get("finish_reason") == "length":
            return self._call.output_tokens
        reason = info.get("finish_reason")
        raise CompletionError(f"call {self._call.name} did not end by its length, but by {reason}")


def composed(calls: Sequence[Call], ask: Ask) -> Program:
    """The program of some calls; from the outputs before them to those and their own."""
    steps: list[Any] = []
    left = list(calls)
    while left:
        sources, head = _head(left)
        parts = independent(head)
        if len(parts) > 1 and len(sources) < len(head):
            branches = {f"part_{number}": composed(part, ask) for number, part in enumerate(parts)}
            steps += [RunnableParallel(branches), RunnableLambda(_merged)]
        else:
            head = sources
            steps.append(RunnablePassthrough.assign(**{call.name: _step(call, ask) for call in head}))
        done = {call.name for call in head}
        left = [call for call in left if call.name not in done]
    return steps[0] if len(steps) == 1 else RunnableSequence(*steps)


def _head(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """The calls that read none of the others, and all that come before what needs every one of them."""
    needs: dict[str, frozenset[str]] = {}
    for call in calls:
        known = [needs[name] for name in call.reads if name in needs]
        needs[call.name] = frozenset().union(*known) if known else frozenset({call.name})
    sources = [call for call in calls if needs[call.name] == {call.name}]
    head = [call for call in calls if call in sources or len(needs[call.name]) < len(sources)]
    return sources, head


def independent(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls in parts of which none reads another's, each in order."""
    part_of: dict[str, list[Call]] = {}
    for call in calls:
        joined = [call]
        for part in {id(part): part for name in call.reads if (part := part_of.get(name))}.values():
            joined = part + joined
        part_of |= dict.fromkeys((each.name for each in joined), joined)
    order = {call.name: place for place, call in enumerate(calls)}
    parts = {id(part): sorted(part, key=lambda call: order[call.name]) for part in part_of.values()}
    return list(parts.values())


def template(call: Call) -> str:
    """The prompt, in the format of Python's `str.format`."""
    return "".join(
        f"{{{segment.call}}}"
        if isinstance(segment, Ref)
        else segment.text.replace("{", "{{").replace("}", "}}")
        for segment in call.prompt
    )


def _step(call: Call, ask: Ask) -> Runnable[Texts, str]:
    async def asked(prompt: PromptValue) -> str:
        return await ask(call, prompt)

    prompt = PromptTemplate(template=template(call), input_variables=list(call.reads))
    return prompt | RunnableLambda(asked)


async def _merged(parts: dict[str, Texts]) -> Texts:
    return {name: text for part in parts.values() for name, text in part.items()}
