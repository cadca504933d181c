"""What prompts that can wait add to the steps of an application in a hurry, on a clock of the test's own."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parrot_engine.backends.pacing import LEAST_PREFILLED

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MOST = 512
DECODE_S = 0.040
TOKEN_S = 0.0004
PIECE_S = 0.010
"""What a step that prefills costs beside its tokens."""
LIMIT_MS = 240.0
SHARE = 0.25


@dataclass
class Prompt:
    """One of vLLM's requests, as far as its turn goes."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    next_decode_eligible_step: int = 0
    status: object = None
    priority: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass
class Machine:
    """Steps as vLLM takes them: first what runs, in the order in which it came, then what waits."""

    module: ModuleType
    turns: Any = None
    now: float = 0.0
    step: int = 0
    prompts: list[Prompt] = field(default_factory=list)

    def submit(self, name: str, tokens: int, **limit: Any) -> Prompt:
        prompt = Prompt(name, tokens, status=self.module.WAITS[0], priority=not limit)
        self.prompts.append(prompt)
        self.turns.add(name, self.module.Limit(**limit))
        return prompt

    def end(self, prompt: Prompt) -> None:
        self.prompts.remove(prompt)
        self.turns.remove(prompt.request_id)

    def plan(self) -> int:
        """The next step's tokens."""
        self.step += 1
        return int(self.turns.plan(self.prompts, self.step))

    def run(self) -> dict[str, int]:
        """A step; returns the tokens that each got."""
        left = self.plan()
        runs = self.module.RequestStatus.RUNNING
        counts: dict[str, int] = {}
        new = []
        for prompt in sorted(self.prompts, key=lambda one: (one.status is not runs, one.priority)):
            if prompt.next_decode_eligible_step > self.step or not left:
                continue
            missing = prompt.num_tokens - prompt.num_computed_tokens
            count = min(left, missing or 1)
            if prompt.status is not runs:
                new.append(SimpleNamespace(req_id=prompt.request_id))
                prompt.status = runs
            counts[prompt.request_id] = count
            left -= count
            prompt.num_computed_tokens += count
            if prompt.num_computed_tokens >= prompt.num_tokens:
                prompt.num_output_tokens += 1
        prefilled = sum(count for count in counts.values() if count > 1)
        self.now += DECODE_S + (PIECE_S + prefilled * TOKEN_S if prefilled else 0.0)
        self.turns.measure(SimpleNamespace(num_scheduled_tokens=counts, scheduled_new_reqs=new))
        return counts


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    # Here, since it needs vLLM.
    from parrot_engine.backends.vllm import turns

    made = Machine(turns, turns.Turns(MOST))
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def hurried(share: float = SHARE, **more: Any) -> dict[str, Any]:
    return {"step_ms": LIMIT_MS, "beside_share": share, **more}


def written(machine: Machine, share: float) -> Prompt:
    """An output that is being written, on an engine that knows its pace."""
    first = machine.submit("first", 100)
    while first.num_output_tokens < 8:
        machine.run()
    machine.end(first)
    output = machine.submit("output", 60, **hurried(share))
    while output.num_output_tokens < 8:
        machine.run()
    return output


@pytest.mark.parametrize("share", [0.1, SHARE, 0.0])
def test_prompts_that_can_wait_lengthen_the_steps_by_their_share_and_get_on(
    machine: Machine, share: float
) -> None:
    written(machine, share)
    for number in range(60):
        machine.submit(f"patient{number}", 700)
    lasted, pieces = [], []
    for _ in range(200):
        before = machine.now
        counts = machine.run()
        lasted.append(machine.now - before)
        pieces += [count for name, count in counts.items() if name.startswith("patient") and count > 1]
    longer = statistics.mean(lasted) / DECODE_S - 1
    assert max(lasted) <= LIMIT_MS / 1000 + PIECE_S
    assert sum(pieces) > LEAST_PREFILLED
    if share:
        assert longer == pytest.approx(share, rel=0.3)
        assert statistics.median(pieces) > 4 * LEAST_PREFILLED, (
            "few large ones cost less than many small ones"
        )
    else:
        assert longer > 2


def test_who_waits_for_a_first_token_does_not_wait_for_those_that_can_wait(machine: Machine) -> None:
    output = written(machine, SHARE)
    patient = [machine.submit(f"patient{number}", 4_000) for number in range(4)]
    machine.end(output)
    while len([one for one in patient if one.num_computed_tokens]) < 2:
        machine.run()
    machine.now += 1
    machine.run()
    urgent = machine.submit("urgent", 80, **hurried())
    before = machine.now
    counts = machine.run()
    assert urgent.num_output_tokens == 1
    assert not any(name.startswith("patient") and count > LEAST_PREFILLED for name, count in counts.items())
    assert machine.now - before < 2.5 * DECODE_S


def test_urgent_prompts_without_end_let_the_others_have_every_other_step(machine: Machine) -> None:
    patient = [machine.submit(f"patient{number}", 4_000) for number in range(3)]
    for _ in range(3):
        machine.run()
    before = sum(one.num_computed_tokens for one in patient)
    for number in range(40):
        machine.submit(f"urgent{number}", MOST, **hurried(0.0))
        machine.run()
    assert sum(one.num_computed_tokens for one in patient) - before > 10 * LEAST_PREFILLED


def test_steps_stay_short_for_a_moment_after_an_output_ended(machine: Machine) -> None:
    output = written(machine, SHARE)
    patient = machine.submit("patient", 40_000)
    machine.run()
    machine.end(output)
    assert machine.plan() == LEAST_PREFILLED
    machine.now += machine.module.LINGER_S
    assert machine.plan() == MOST
    assert patient in machine.prompts


def test_nothing_lingers_after_an_output_that_was_read_along(machine: Machine) -> None:
    output = written(machine, 0.0)
    machine.submit("patient", 40_000)
    machine.end(output)
    assert machine.plan() == MOST


def test_what_is_held_of_a_prompt_makes_no_room_for_those_that_can_wait(machine: Machine) -> None:
    written(machine, SHARE)
    machine.submit("patient", 4_000)
    while not machine.turns.pace.owes:
        machine.run()
    machine.submit("ahead", 508, **hurried(ahead=True, held_tokens=500))
    assert machine.plan() == 1 + 8
