"""Which tokens a step of vLLM's takes while some requests are urgent, over a toy model."""

from __future__ import annotations

import pytest
from tests.support.toy_engine import STEP_TOKENS, Make, check, continuation, numbers

from parrot_engine.backends import pacing
from parrot_engine.backends.vllm.wire import Errand

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize("step_ms", [0.0, 1e-6])
def test_while_an_output_with_short_steps_is_written_little_is_prefilled_beside_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, step_ms: float
) -> None:
    monkeypatch.setattr(pacing, "LEAST_PREFILLED", 2)
    engine, prompt = make(60), numbers(5, 4)
    chat = engine.submit(prompt, Errand("chat", step_ms=step_ms), 40)
    while not engine.outputs[chat]:
        engine.step()
    fill = engine.submit(numbers(40), Errand("long", hold=True, fill=True), 1)
    before = len(engine.outputs[chat])
    while fill not in engine.finished:
        engine.step()
    meanwhile = len(engine.outputs[chat]) - before
    assert (meanwhile >= 40 // 2) is bool(step_ms)
    engine.run()
    assert engine.outputs[chat] == continuation(prompt, 40)
    engine.submit(numbers(60, 3), Errand("alone", hold=True, fill=True), 1)
    assert engine.scheduler.turns.plan(engine.scheduler.requests.values(), 1) == STEP_TOKENS


def test_what_waits_and_is_urgent_goes_before_a_prompt_that_has_begun_and_is_not(make: Make) -> None:
    engine = make(80)
    slow = engine.submit(numbers(60, 3), Errand("slow"), 1)
    engine.step()
    prompt = numbers(STEP_TOKENS, 4)
    chat = engine.submit(prompt, Errand("chat", step_ms=1e6), 4)
    while not engine.outputs[chat]:
        engine.step()
    assert not engine.outputs[slow]
    engine.run()
    assert engine.outputs[slow] == continuation(numbers(60, 3), 1)
    assert engine.outputs[chat] == continuation(prompt, 4)
    check(engine)


def test_what_is_filled_ahead_for_an_urgent_output_goes_before_what_is_not(make: Make) -> None:
    engine = make(80)
    slow = engine.submit(numbers(60, 3), Errand("slow"), 1)
    engine.step()
    ahead = Errand("next", hold=True, fill=True, step_ms=1e6, ahead=True)
    fill = engine.submit(numbers(STEP_TOKENS, 4), ahead, 1)
    while fill not in engine.finished:
        engine.step()
    assert not engine.outputs[slow]
    engine.run()
    check(engine)


def test_urgent_prompts_without_end_do_not_stop_one_that_is_not(make: Make) -> None:
    engine = make(120)
    slow = engine.submit(numbers(60, 3), Errand("slow"), 1)
    engine.step()
    for number in range(40):
        engine.submit(numbers(STEP_TOKENS, number), Errand(f"chat{number}", step_ms=1e6), 1)
        engine.step()
        if slow in engine.finished:
            break
    assert slow in engine.finished
    engine.run()
    check(engine)
