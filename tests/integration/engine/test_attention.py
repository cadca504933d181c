"""`--attention parrot` on the CPU with the real model: the tokens of vLLM's own attention, by our kernel."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tests.support.attention import Outputs, both, builder, fill, tokens
from tests.support.vllm_engine import InProcessEngine

from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.models import find_model
from parrot_engine.settings import default_cache_dir
from parrot_engine.text.tokens import ModelTokenizer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # Sockets of engines that other modules stopped are left to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WINDOW, SMALL_WINDOW = 1024, 512
BLOCK_BYTES = 30 * 3 * 64 * 2 * 4 * 32
"""A block of SmolLM2's KV in float32: layers, heads, dims, keys and values, bytes, tokens."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_model("smollm2", default_cache_dir(), lambda line: None).path


@pytest.fixture(scope="module")
def text(folder: Path) -> list[int]:
    """Tokens of a real text."""
    return ModelTokenizer.load(folder).encode_value("".join(topics.values())[:30_000])


def started(folder: Path, blocks: int, window: int, **more: bool) -> Iterator[InProcessEngine]:
    engine = InProcessEngine(
        folder,
        (blocks + 1) * BLOCK_BYTES,
        contexts=True,
        attention="Parrot",
        context_window_tokens=window,
        **more,
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[InProcessEngine]:
    yield from started(folder, 100, WINDOW)


@pytest.fixture(scope="module")
def small_engine(folder: Path) -> Iterator[InProcessEngine]:
    """With memory for one window, which schedules a step while the one before is computed."""
    yield from started(folder, SMALL_WINDOW // 32, SMALL_WINDOW, ahead=True)


def test_the_backend_is_vllms_by_its_name(engine: InProcessEngine) -> None:
    assert engine.core.vllm_config.attention_config.backend.name == "PARROT"
    assert builder(engine).enabled


def forks(engine: InProcessEngine, *, prompt: list[int], ends: list[list[int]], new: int) -> Outputs:
    fill(engine, prompt, "parent")
    names = [engine.submit(prompt + end, new, Errand(f"fork{at}", "parent")) for at, end in enumerate(ends)]
    engine.run()
    return tokens(engine, names)


def test_sixteen_forks_of_a_long_prompt_read_it_once(engine: InProcessEngine, text: list[int]) -> None:
    ends = [text[2000 + 40 * at : 2000 + 40 * at + 3 + at] for at in range(16)]
    plain, ours, done = both(engine, partial(forks, prompt=text[:810], ends=ends, new=8))
    assert ours == plain
    assert len({tuple(output) for output in ours}) > 1
    assert done.rows >= 16 * 7
    assert done.shared_items >= done.steps
    assert done.known_trees == done.steps


def nested(engine: InProcessEngine, *, text: list[int]) -> Outputs:
    """Three children of one context, and three of each of them; they begin and end at all kinds of places."""
    root, names = text[:225], []
    middles = [root + text[1000 + 300 * child :][: 98 + 17 * child] for child in range(3)]
    fill(engine, root, "root")
    for child, middle in enumerate(middles):
        fill(engine, middle, f"child{child}", "root")
    for child, leaf in product(range(3), range(3)):
        end = text[3000 + 100 * child + 20 * leaf :][: 1 + 31 * leaf]
        errand = Errand(f"leaf{child}{leaf}", f"child{child}")
        names.append(engine.submit(middles[child] + end, 4 + 3 * leaf, errand))
    engine.run()
    return tokens(engine, names)


def test_forks_of_forks_share_what_each_of_them_has_in_common(
    engine: InProcessEngine, text: list[int]
) -> None:
    plain, ours, done = both(engine, partial(nested, text=text))
    assert ours == plain
    assert done.shared_items >= 2 * done.steps


def beside(engine: InProcessEngine, *, text: list[int]) -> Outputs:
    """A long prompt comes while others decode, and is prefilled in pieces beside them."""
    names = [engine.submit(text[at : at + 60], 9, Errand(f"short{at}")) for at in (0, 500, 1000)]
    for _ in range(3):
        engine.step()
    names.append(engine.submit(text[2000:2900], 3, Errand("long")))
    engine.run()
    return tokens(engine, names)


def test_a_prompt_is_prefilled_in_pieces_beside_what_decodes(
    engine: InProcessEngine, text: list[int]
) -> None:
    plain, ours, done = both(engine, partial(beside, text=text))
    assert ours == plain
    assert done.rows >= 3 * 8 + 2
    # Each piece of the long prompt is a row of a step.
    assert done.other_rows >= 3


def streamed(engine: InProcessEngine, *, text: list[int]) -> Outputs:
    """A consumer's input is prefilled while its producer writes it."""
    prompt, static, sent = text[:160], text[2000:2130], 0
    producer = engine.submit(prompt, 25, Errand("producer"))
    others = [engine.submit(prompt + text[at : at + 5], 17, Errand(f"o{at}")) for at in (3000, 3100)]
    while producer not in engine.last or not engine.last[producer].finished:
        engine.step()
        made = tokens(engine, [producer])[0] if producer in engine.last else []
        if len(made) >= sent + 8:
            sent = len(made)
            engine.submit(static + made, 1, Errand("consumer", hold=True, fill=True))
    whole = static + tokens(engine, [producer])[0]
    consumers = [engine.submit(whole + text[at : at + 9], 6, Errand("consumer")) for at in (0, 50)]
    engine.run()
    return tokens(engine, [producer, *others, *consumers])


def test_inputs_are_prefilled_while_they_are_written(engine: InProcessEngine, text: list[int]) -> None:
    plain, ours, done = both(engine, partial(streamed, text=text))
    assert ours == plain
    assert done.shared_items
    assert done.other_rows


def mixed(engine: InProcessEngine, *, text: list[int], seed: int) -> Outputs:
    """Prompts of every length about a block's, some the same; they come, and end, in twos and threes."""
    source, names = random.Random(seed), []
    for at, length in enumerate((1, 2, 31, 32, 33, 33, 64, 65, 95, 130)):
        begin = 0 if source.random() < 0.5 else 100 * at
        prompt, new = text[begin : begin + length], source.choice((1, 2, 6, 9))
        names.append(engine.submit(prompt, new, Errand(f"m{at}")))
        for _ in range(source.choice((0, 0, 2))):
            engine.step()
    engine.run()
    return tokens(engine, names)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_lengths_come_together_and_end_at_once(
    engine: InProcessEngine, text: list[int], seed: int
) -> None:
    plain, ours, done = both(engine, partial(mixed, text=text, seed=seed))
    assert ours == plain
    assert done.rows >= sum(map(len, ours)) - len(ours)


def crowded(engine: InProcessEngine, *, text: list[int]) -> Outputs:
    """Four outputs that fit in the memory when they begin, and not when they have grown."""
    prompts = [text[:64] + text[1000 + 300 * at :][:88] for at in range(4)]
    lengths = accumulate([14, 1, 1, -3])
    names = [
        engine.submit(prompt, new, Errand(f"p{at}"))
        for at, (prompt, new) in enumerate(zip(prompts, lengths, strict=True))
    ]
    engine.run()
    return tokens(engine, names)


def test_what_is_preempted_goes_on_where_it_was(
    small_engine: InProcessEngine, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, preempted = small_engine.core.scheduler, []
    preempt = scheduler._preempt_request

    def noted(request: object, *more: object, **named: object) -> None:
        preempted.append(request)
        preempt(request, *more, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", noted)
    plain, ours, done = both(small_engine, partial(crowded, text=text))
    assert len(preempted) >= 2
    assert ours == plain
    assert done.shared_items
    assert done.known_trees
