"""Engines die in the middle of streams, and no reader can tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import attached
from tests.support.attached import Engines, engine_of, graph, streamed
from tests.support.up import Event, Up, data_folder, running
from tests.support.waiting import until

import parrot as P

pytestmark = pytest.mark.timeout(180)
long = P.SamplingConfig(temperature=0, max_gen_length=160, ignore_tokenizer_eos=True)
short = P.SamplingConfig(temperature=0, max_gen_length=8)
PHRASES = [f"{name} opens at dawn, and closes when all was read, {'again ' * 20}" for name in "ABC"]
one_of = P.SamplingConfig(temperature=0, max_gen_length=300, guide=P.Guide(choice=PHRASES))


@P.semantic_function(sampling=long)
def talk(topic: P.Input, speech: P.Output) -> None:
    """Talk about {{topic}}: {{speech}}"""


@P.semantic_function(sampling=one_of)
def choose(topic: P.Input, phrase: P.Output) -> None:
    """Which of the three goes with {{topic}}? {{phrase}}"""


@P.semantic_function(sampling=long)
def twice(topic: P.Input, first: P.Output, second: P.Output) -> None:
    """Talk about {{topic}}: {{first}} And once more: {{second}}"""


@P.semantic_function(sampling=short)
def judge(rules: P.Input, speech: P.Input, verdict: P.Output) -> None:
    """{{rules}} The speech: {{speech}} The verdict: {{verdict}}"""


RULES = "Judge a speech by what it says, and never by its length or by who gave it. " * 55


@pytest.fixture(scope="module")
def bare() -> Iterator[tuple[Up, Event]]:
    """A stack without engines, to which tests attach their own."""
    with data_folder() as folder, running(folder, "--backend", "sim", "--engines", "0") as up:
        yield up, up.wait_up()
        assert up.stop() == 0


@pytest.fixture
def up(bare: tuple[Up, Event]) -> Up:
    """The stack's address."""
    return bare[0]


@pytest.fixture
def engines(bare: tuple[Up, Event], tmp_path: Path) -> Iterator[Engines]:
    """Two engines, of 15 ms a token, each a piece, for which a prompt is work that is worth hiding."""
    flags = ["--backend", "sim", "--sim-step-ms", "15", "--sim-prefill-tokens-per-s", "4000"]
    flags += ["--stream-interval-ms", "0"]
    with attached.engines(*bare, tmp_path, flags, "e-a", "e-b") as found:
        yield found


def undisturbed(up: Up) -> P.Session:
    """A session like the others, for the text that is to come."""
    return P.Session(up.url, timeout=120)


@pytest.mark.parametrize("pieces", [1, 5, 60])
def test_a_reader_sees_no_byte_changed_missing_or_twice_when_its_engine_is_killed(
    up: Up, engines: Engines, pieces: int
) -> None:
    with undisturbed(up):
        expected = talk("storms").get(timeout=60)
    with P.Session(up.url, timeout=120) as session:
        speech = talk("storms")
        stream, read = streamed(speech, pieces)
        engines.kill(engine_of(up, session))
        text = "".join([*read, *stream])
        assert text == expected
        assert speech.get() == expected
        (call,) = graph(up, session)["calls"]
        assert (call["state"], call["attempt"]) == ("done", 2)


def test_the_second_engine_may_die_too(up: Up, engines: Engines) -> None:
    with undisturbed(up):
        expected = talk("deserts").get(timeout=60)
    engines.start("e-c")
    with P.Session(up.url, timeout=120) as session:
        speech = talk("deserts")
        stream, read = streamed(speech, 10)
        first = engine_of(up, session)
        engines.kill(first)
        read += [next(stream) for _ in range(30)]
        until(lambda: engine_of(up, session) not in ("", first))
        engines.kill(engine_of(up, session))
        assert "".join([*read, *stream]) == expected
        assert graph(up, session)["calls"][0]["attempt"] == 3


def test_a_choice_is_gone_on_with_and_no_other_is_begun(up: Up, engines: Engines) -> None:
    with P.Session(up.url, timeout=120) as session:
        phrase = choose("harbours")
        stream, read = streamed(phrase, 40)
        engines.kill(engine_of(up, session))
        assert "".join([*read, *stream]) in PHRASES


def test_an_output_that_was_complete_is_not_made_again(up: Up, engines: Engines) -> None:
    with undisturbed(up):
        expected = [output.get(timeout=60) for output in twice("islands")]
    with P.Session(up.url, timeout=120) as session:
        first, second = twice("islands")
        stream, read = streamed(second, 5)
        engines.kill(engine_of(up, session))
        rest = "".join([*read, *stream])
        assert [first.get(timeout=60), rest] == expected
        (call,) = graph(up, session)["calls"]
        assert call["attempt"] == 2
        assert call["usage"]["output_tokens"] <= 160


def test_a_consumer_is_prefilled_while_its_producer_decodes(up: Up, engines: Engines) -> None:
    with P.Session(up.url, timeout=120) as session:
        speech = talk("rivers")
        verdict = judge(RULES, speech)
        assert verdict.get(timeout=60)
        producer, consumer = graph(up, session)["calls"]
        assert consumer["dispatched_unix_ms"] < producer["ended_unix_ms"]
        assert consumer["timings"]["static_prefill_tokens"] > 0
        assert consumer["timings"]["dynamic_prefill_tokens"] > 0


def test_the_application_ends_well_whichever_engine_dies_under_a_streaming_edge(
    up: Up, engines: Engines
) -> None:
    with undisturbed(up):
        expected = judge(RULES, talk("glaciers")).get(timeout=60)
    for place in (0, 1):
        with P.Session(up.url, timeout=120) as session:
            speech = talk("glaciers")
            verdict = judge(RULES, speech)
            stream, read = streamed(speech, 20)
            until(lambda session=session: engine_of(up, session, 1) != "")  # type: ignore[misc]
            victim = engine_of(up, session, place)
            engines.kill(victim)
            engines.start(victim)
            assert "".join([*read, *stream]) == speech.get()
            assert verdict.get(timeout=60) == expected
            engines.wait_attached("e-a", "e-b")
