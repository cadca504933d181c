"""Held contexts in vLLM's engine in one process, scheduling step by step and ahead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.tiny_model import kv_bytes, write_tiny_model
from tests.support.vllm_engine import InProcessEngine

from parrot_engine.backends.vllm.wire import Errand

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # Sockets of engines that other modules stopped are left to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROMPT = list(range(1000, 1075))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[InProcessEngine]:
    engine = InProcessEngine(folder, kv_bytes(147), contexts=False)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[False, True], ids=["in-step", "ahead"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[InProcessEngine]:
    made = InProcessEngine(folder, kv_bytes(147), contexts=True, ahead=request.param)
    assert (made.core.batch_queue is not None) == request.param
    yield made
    made.close()


def test_forks_of_a_held_context_generate_what_a_cold_engine_does(
    engine: InProcessEngine, plain: InProcessEngine
) -> None:
    engine.generate([PROMPT], 1, [Errand("parent", hold=True, fill=True)])
    prompts = [PROMPT + list(range(start, start + 20)) for start in (2000, 3000, 4000)]
    forks = [Errand(f"child{at}", "parent", hold=True) for at in range(3)]
    outputs = engine.generate(prompts, 40, forks)
    cold = plain.generate(prompts, 40, forks)
    assert [output.num_cached_tokens for output in outputs] == [len(PROMPT)] * 3
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    assert texts == [list(output.outputs[0].token_ids) for output in cold]
    again = engine.generate([prompts[0] + texts[0]], 8, [Errand("child0")])[0]
    assert again.num_cached_tokens == len(prompts[0]) + 39
    assert engine.core.parrot_audit()["faults"] == []
    engine.core.parrot_free_contexts(["parent", "child0", "child1", "child2"])
    books = engine.core.parrot_audit()
    assert books["free_blocks"] == books["total_blocks"]
    assert not books["held_contexts"]


def test_five_fills_of_more_than_the_memory_all_finish(engine: InProcessEngine) -> None:
    prompts = [list(range(start, start + 1200)) for start in range(100, 30_000, 6000)]
    errands = [Errand(f"c{at}", hold=True, fill=True) for at in range(5)]
    outputs = engine.generate(prompts, 1, errands)
    assert all(output.finished for output in outputs)
    assert engine.core.parrot_audit()["faults"] == []
    engine.core.parrot_free_contexts([errand.context_id for errand in errands])
