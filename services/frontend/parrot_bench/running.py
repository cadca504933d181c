"""Runs a workload on systems, round by round, each system's servers alone on the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from parrot_bench import registry
from parrot_bench.documents import Documents, Tokenizer
from parrot_bench.figures import Round
from parrot_bench.graphs import Application, Workload
from parrot_bench.shapes import Shape
from parrot_bench.systems.base import Outcome, Settings, System, Unavailable
from parrot_bench.usage import cpu_s
from parrot_bench.workloads import build

WARM_UP_SEED: Final = 1_000_003
"""Added to the seed: the text of warming up is that of no round."""


class Watcher(Protocol):
    """Is told how it goes."""

    def begin(self, system: str, number: int) -> None:
        """A system's turn in a round has come."""

    def say(self, text: str) -> None:
        """What is waited for."""

    def end(self, played: Round) -> None:
        """It has run."""

    def lost(self, system: str, reason: str) -> None:
        """A system takes no further part."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark.

    Attributes:
        workload: its name.
        texts: what its documents are made of.
        systems: their names; the first round runs them in this order.
        repeat: rounds.
        together: servers of all systems stay up, idle while another is measured.
        timeout_s: of one application; one that takes longer has failed.
    """

    workload: str
    shape: Shape
    texts: Sequence[str]
    tokenizer: Tokenizer
    systems: Sequence[str]
    settings: Settings
    repeat: int = 3
    seed: int = 0
    together: bool = False
    timeout_s: float = 900.0

    def round(self, number: int) -> Workload:
        """The workload of a round, the same for all systems and every time.

        Raises:
            DocumentError: there is not enough text.
        """
        seed = self.seed + number
        return build(self.workload, self.shape, Documents(self.texts, self.tokenizer, seed), seed)

    def warm_up(self) -> Workload:
        """A small workload of the same sizes of calls, with text that no round has."""
        shape = self.shape
        small = replace(
            shape,
            applications=min(shape.applications, 2),
            chunks=min(shape.chunks, 2),
            files=min(shape.files, 2),
            queries=min(shape.queries, 2),
            rounds=1,
            gap_s=0.0,
            rate_per_s=10.0,
            deadline_s=0.0,
        )
        seed = self.seed + WARM_UP_SEED
        return build(self.workload, small, Documents(self.texts, self.tokenizer, seed), seed)


@dataclass(slots=True)
class Outcomes:
    """What came of a benchmark.

    Attributes:
        lost: why a system took no further part, by its name.
    """

    rounds: list[Round] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def failures(self) -> dict[str, list[str]]:
        """What failed in each system, in the order in which it did."""
        found: dict[str, list[str]] = {}
        for played in self.rounds:
            if played.errors:
                found.setdefault(played.system, []).extend(played.errors)
        return found


async def run(
    plan: Plan, watcher: Watcher, make: Callable[[str, Settings], System] = registry.make
) -> Outcomes:
    """Runs all rounds. Every other one runs the systems in the opposite order, so that none gains by its
    place. Each is started and warmed up for each of its rounds; with `together`, for its first.

    Whatever was started is stopped again, also when this is cancelled.

    Raises:
        DocumentError: there is not enough text.
    """
    workloads = [plan.round(number) for number in range(plan.repeat)]
    outcomes = Outcomes()
    crew = _Crew([make(name, plan.settings) for name in plan.systems], plan, watcher)
    try:
        for number, workload in enumerate(workloads):
            order = plan.systems if number % 2 == 0 else list(reversed(plan.systems))
            for place, name in enumerate(order):
                if name in outcomes.lost:
                    continue
                watcher.begin(name, number)
                try:
                    system = await crew.wake(name)
                except Unavailable as reason:
                    outcomes.lost[name] = str(reason)
                    watcher.lost(name, str(reason))
                    continue
                played = await crew.play(system, workload, number, place)
                outcomes.rounds.append(played)
                watcher.end(played)
                if played.errors:
                    # Its servers may be broken: the next round has new ones.
                    await crew.sleep(name)
            if not plan.together:
                # Who ends a round begins the next: it alone would be in its second one by then.
                await crew.close()
    finally:
        await crew.close()
    return outcomes


class _Crew:
    """The systems, and which of them are awake."""

    def __init__(self, systems: Sequence[System], plan: Plan, watcher: Watcher) -> None:
        self._systems = {system.name: system for system in systems}
        self._awake: dict[str, System] = {}
        self._plan = plan
        self._watcher = watcher

    async def wake(self, name: str) -> System:
        """The system, started and warmed up; without `together`, the others sleep.

        Raises:
            Unavailable: it can't run.
        """
        if name in self._awake:
            return self._awake[name]
        if not self._plan.together:
            await self.close()
        system = self._systems[name]
        self._watcher.say(f"{name}: starting")
        await system.start(self._watcher.say)
        self._awake[name] = system
        self._watcher.say(f"{name}: warming up")
        warm = await play(system, self._plan.warm_up(), self._plan.timeout_s)
        errors = [outcome.error for outcome in warm.values() if outcome.error]
        if errors:
            await self.sleep(name)
            raise Unavailable(f"it failed while it was warmed up: {errors[0]}")
        return system

    async def play(self, system: System, workload: Workload, number: int, place: int) -> Round:
        """A round of a system, and what the others took of the processors meanwhile."""
        self._watcher.say(f"{system.name}: running")
        idle = frozenset(pid for other in self._awake.values() if other is not system for pid in other.pids())
        idle -= system.pids()
        began_s, idle_s = time.perf_counter(), cpu_s(idle)
        outcomes = await play(system, workload, self._plan.timeout_s)
        # What of the background was cut off has no end that counts.
        wall_ms = max(
            (
                application.arrival_ms + outcomes[application.name].e2e_ms
                for application in workload.applications
                if application.kind != "background"
            ),
            default=(time.perf_counter() - began_s) * 1000,
        )
        return Round(system.name, number, place, workload, outcomes, wall_ms, max(0.0, cpu_s(idle) - idle_s))

    async def sleep(self, name: str) -> None:
        """Stops a system that is awake."""
        self._watcher.say(f"{name}: stopping")
        await self._awake.pop(name).stop()

    async def close(self) -> None:
        """Stops what is awake, each even where another can't be stopped."""
        async with AsyncExitStack() as stopping:
            while self._awake:
                name, system = self._awake.popitem()
                self._watcher.say(f"{name}: stopping")
                stopping.push_async_callback(system.stop)


async def play(system: System, workload: Workload, timeout_s: float) -> dict[str, Outcome]:
    """Runs a workload's applications, each from its arrival on; the outcomes by application.

    The background ends with the last application that is measured.
    """
    began_s = time.perf_counter()
    tasks = {
        application: asyncio.create_task(_arriving(system, application, began_s, timeout_s))
        for application in workload.applications
    }
    measured = [task for application, task in tasks.items() if application.kind != "background"]
    try:
        await asyncio.gather(*(measured or tasks.values()))
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {
        application.name: await _accounted(system, application, task.result(), timeout_s)
        for application, task in tasks.items()
        if not task.cancelled() and task.exception() is None
    }


async def _accounted(system: System, application: Application, outcome: Outcome, timeout_s: float) -> Outcome:
    try:
        async with asyncio.timeout(timeout_s):
            return await system.account(application, outcome)
    except TimeoutError:
        error = f"nothing was said of its calls within {timeout_s:g} s"
    except Exception as failure:  # noqa: BLE001 - as below
        error = f"{type(failure).__name__}: {failure}"
    return replace(outcome, error=outcome.error or error)


async def _arriving(system: System, application: Application, began_s: float, timeout_s: float) -> Outcome:
    await asyncio.sleep(began_s + application.arrival_ms / 1000 - time.perf_counter())
    at_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            return await system.run(application)
    except TimeoutError:
        error = f"it was not done within {timeout_s:g} s"
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is that system's, and the rest goes on
        error = f"{type(failure).__name__}: {failure}"
    return Outcome(application.name, (time.perf_counter() - at_s) * 1000, error=error)
