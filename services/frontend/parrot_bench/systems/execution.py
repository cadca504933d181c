"""A graph of calls, executed by the client: each as soon as what it reads is there, without any bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from parrot_bench.graphs import Application, Call
from parrot_bench.systems.base import CallOutcome, Outcome, wrong_count
from parrot_bench.systems.completions import Completion, CompletionError

Complete = Callable[[Call, str], Awaitable[tuple[Completion, str]]]
"""A call and its prompt; the completion, and the engine it ran on.

Raises:
    CompletionError: it failed.
"""


@dataclass(slots=True)
class Record:
    """What is known of an application while it runs. Times are by `perf_counter`."""

    began_s: float = field(default_factory=perf_counter)
    texts: dict[str, str] = field(default_factory=dict)
    calls: list[CallOutcome] = field(default_factory=list)

    def note(self, call: Call, done: Completion, engine: str) -> None:
        """Notes a call that ended.

        Raises:
            CompletionError: it wrote another number of tokens than it was to.
        """
        wrong = wrong_count(call, done.output_tokens)
        if wrong:
            raise CompletionError(wrong)
        self.texts[call.name] = done.text
        self.calls.append(
            CallOutcome(
                name=call.name,
                start_ms=self._ms(done.began_s),
                first_ms=None if done.first_s is None else self._ms(done.first_s),
                end_ms=self._ms(done.ended_s),
                prompt_tokens=done.prompt_tokens,
                output_tokens=done.output_tokens,
                cached_tokens=done.cached_tokens,
                engine=engine,
            )
        )

    def outcome(self, application: Application, error: str = "") -> Outcome:
        """The application's, now that it has ended."""
        finals = [call for call in self.calls if call.name in application.finals]
        last_ms = max((call.end_ms for call in finals), default=0.0)
        return Outcome(
            application=application.name,
            e2e_ms=self._ms(perf_counter()) if error else last_ms,
            calls=tuple(sorted(self.calls, key=lambda call: call.start_ms)),
            error=error,
            outputs=_finals(application, self.texts),
        )

    def _ms(self, at_s: float) -> float:
        return (at_s - self.began_s) * 1e3


def _finals(application: Application, texts: Mapping[str, str]) -> dict[str, str]:
    return {name: texts[name] for name in application.finals if name in texts}


async def execute(application: Application, complete: Complete) -> Outcome:
    """Runs an application to its end. When a call fails, those that run are given up: that is the outcome."""
    record = Record()
    error = ""
    ended = {call.name: asyncio.Event() for call in application.calls}

    async def run(call: Call) -> None:
        for name in call.reads:
            await ended[name].wait()
        done, engine = await complete(call, call.render(record.texts))
        record.note(call, done, engine)
        ended[call.name].set()

    try:
        async with asyncio.TaskGroup() as calls:
            for call in application.calls:
                calls.create_task(run(call), name=f"{application.name} {call.name}")
    except* CompletionError as group:
        error = first_reason(group)
    return record.outcome(application, error)


def first_reason(error: BaseException) -> str:
    """What failed first, out of the groups it came in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
