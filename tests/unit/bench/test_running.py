"""Rounds take turns, one system at a time; what fails is named, and whatever was started is stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from parrot_bench.documents import ByteTokenizer
from parrot_bench.figures import Round
from parrot_bench.graphs import Application
from parrot_bench.running import Outcomes, Plan, play, run
from parrot_bench.systems.base import Outcome, Say, Settings, System, Unavailable
from parrot_bench.workloads import WORKLOADS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.stuck = asyncio.Event()

    def begin(self, system: str, number: int) -> None:
        self.turns.append((system, number))

    def say(self, text: str) -> None:
        self.said.append(text)
        if text == "stuck: warming up":
            self.stuck.set()

    def end(self, played: Round) -> None:
        self.said.append(f"{played.system} ended")

    def lost(self, system: str, reason: str) -> None:
        self.said.append(f"{system} lost: {reason}")


class Stage:
    """Which systems are up, over all of them."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.most = 0
        self.starts: list[str] = []
        self.ran: list[tuple[str, str]] = []
        self.never = asyncio.Event()


class Fake(System):
    """A system that takes no time; "absent" can't start, "broken" fails always, "stuck" never ends.

    "frail" fails the second time, which is in its first round.
    """

    def __init__(self, name: str, settings: Settings, stage: Stage) -> None:
        super().__init__(name, settings)
        self.stage = stage

    async def start(self, say: Say) -> None:
        say("starting")
        if self.name == "absent":
            raise Unavailable("it is not installed")
        self.stage.starts.append(self.name)
        self.stage.up.add(self.name)
        self.stage.most = max(self.stage.most, len(self.stage.up))

    async def stop(self) -> None:
        self.stage.up.discard(self.name)
        if self.name == "clinging":
            raise OSError("it does not stop")

    async def run(self, application: Application) -> Outcome:
        assert self.name in self.stage.up
        text = application.calls[0].render({})
        self.stage.ran.append((self.name, text))
        runs = sum(name == self.name for name, _ in self.stage.ran)
        if self.name == "broken" or (self.name == "frail" and runs == 2):
            raise RuntimeError("the engine is gone")
        if self.name == "stuck" or (application.kind == "background" and application.arrival_ms > 0):
            await self.stage.never.wait()
        return Outcome(application.name, 5.0)


def plan_of(*systems: str, workload: str = "chain", repeat: int = 2, together: bool = False) -> Plan:
    texts = [f"the {number} of spades, " * 20 for number in range(100)]
    settings = Settings(Path())
    shape = WORKLOADS[workload].quick
    return Plan(
        workload, shape, texts, ByteTokenizer(), systems, settings, repeat, together=together, timeout_s=30
    )


async def ran(plan: Plan, stage: Stage, told: Told | None = None) -> Outcomes:
    return await run(plan, told or Told(), lambda name, settings: Fake(name, settings, stage))


async def test_the_order_turns_and_one_system_is_up_at_a_time() -> None:
    stage, told = Stage(), Told()
    outcomes = await ran(plan_of("a", "b", "c", repeat=3), stage, told)
    assert told.turns == [
        ("a", 0),
        ("b", 0),
        ("c", 0),
        ("c", 1),
        ("b", 1),
        ("a", 1),
        ("a", 2),
        ("b", 2),
        ("c", 2),
    ]
    assert stage.most == 1
    # Who ends a round begins the next, but is as new as the others.
    assert stage.starts == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]
    assert stage.up == set()
    assert [(r.system, r.number, r.place) for r in outcomes.rounds][3] == ("c", 1, 0)


async def test_together_each_is_started_once() -> None:
    stage = Stage()
    await ran(plan_of("a", "b", repeat=3, together=True), stage)
    assert stage.starts == ["a", "b"]
    assert (stage.most, stage.up) == (2, set())


async def test_a_round_is_the_same_for_all_and_warming_up_is_none_of_them() -> None:
    stage = Stage()
    await ran(plan_of("a", "b"), stage)
    texts = {name: [text for system, text in stage.ran if system == name] for name in ("a", "b")}
    warm, first, second, *_ = texts["a"][0], texts["a"][1], texts["a"][-1]
    assert len({warm, first, second}) == 3
    assert {first, second} <= set(texts["b"])
    assert texts["b"][0] == warm


async def test_what_cannot_run_is_named_and_the_rest_goes_on() -> None:
    stage, told = Stage(), Told()
    outcomes = await ran(plan_of("absent", "broken", "a"), stage, told)
    assert outcomes.lost["absent"] == "it is not installed"
    assert "the engine is gone" in outcomes.lost["broken"]
    assert [r.system for r in outcomes.rounds] == ["a", "a"]
    # It is not tried again in the next round.
    assert [name for name, _ in told.turns] == ["absent", "broken", "a", "a"]
    assert stage.up == set()


async def test_after_a_failure_its_servers_are_new() -> None:
    stage = Stage()
    outcomes = await ran(plan_of("frail", "a", together=True), stage)
    assert [r.system for r in outcomes.rounds if r.errors] == ["frail"]
    assert [r.system for r in outcomes.rounds] == ["frail", "a", "a", "frail"]
    assert stage.starts == ["frail", "a", "frail"]
    assert stage.up == set()


async def test_a_failure_in_a_round_is_an_outcome() -> None:
    stage = Stage()
    plan = plan_of("a")
    system = Fake("broken", plan.settings, stage)
    await system.start(lambda _: None)
    outcomes = await play(system, plan.round(0), 30)
    assert outcomes["chain"].error == "RuntimeError: the engine is gone"


async def test_what_takes_too_long_has_failed() -> None:
    stage = Stage()
    plan = plan_of("a")
    system = Fake("stuck", plan.settings, stage)
    await system.start(lambda _: None)
    assert "not done within 0.01 s" in (await play(system, plan.round(0), 0.01))["chain"].error


async def test_the_background_ends_with_what_is_measured() -> None:
    stage = Stage()
    plan = plan_of("a", workload="chain-loaded")
    system = Fake("a", plan.settings, stage)
    await system.start(lambda _: None)
    outcomes = await play(system, plan.round(0), 30)
    assert set(outcomes) == {"chain"}


async def test_no_application_begins_before_its_arrival() -> None:
    plan = plan_of("a", workload="map-reduce")
    plan = replace(plan, shape=replace(plan.shape, applications=3, gap_s=0.02))
    loop = asyncio.get_running_loop()
    at: dict[str, float] = {}

    class Clocked(Fake):
        async def run(self, application: Application) -> Outcome:
            at[application.name] = loop.time()
            return await super().run(application)

    system = Clocked("a", plan.settings, Stage())
    await system.start(lambda _: None)
    began = loop.time()
    await play(system, plan.round(0), 30)
    assert list(at) == ["map_reduce_0", "map_reduce_1", "map_reduce_2"]
    assert at["map_reduce_1"] - began > 0.019
    assert at["map_reduce_2"] - began > 0.039


@pytest.mark.parametrize("together", [False, True])
async def test_an_interrupt_stops_everything(together: bool) -> None:
    stage, told = Stage(), Told()
    # The third would be stuck in warming up: the second is up by then, or both.
    work = asyncio.create_task(ran(plan_of("a", "b", "stuck", together=together), stage, told))
    await told.stuck.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert stage.starts == ["a", "b", "stuck"]
    assert stage.up == set()


async def test_one_that_cannot_be_stopped_keeps_no_other_from_it() -> None:
    stage = Stage()
    with pytest.raises(OSError, match="does not stop"):
        await ran(plan_of("a", "clinging", "b", repeat=1, together=True), stage)
    assert stage.up == set()
