"""An output that is held to a form keeps to it when its engine dies: real engines, real grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import pytest
from tests.support import attached
from tests.support.attached import Engines, engine_of, graph, streamed
from tests.support.tiny_model import write_tiny_model
from tests.support.up import Event, Up, data_folder, running

import parrot as P

STARTS_WITHIN_S = 300
"""Two engines on two busy cores."""
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * STARTS_WITHIN_S)]

STEPS = 24
"""So many that no output ends before its engine does, however late a busy machine reads it."""
STEP = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "text": {"type": "string", "maxLength": 12},
    },
    "required": ["n", "text"],
    "additionalProperties": False,
}
PLAN = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 24},
        "steps": {"type": "array", "items": STEP, "minItems": STEPS, "maxItems": STEPS},
    },
    "required": ["title", "steps"],
    "additionalProperties": False,
}
CODE = r"[A-F]{200}-[0-9]{200}-(yes|no)"
as_plan = P.SamplingConfig(temperature=0, max_gen_length=1500, guide=P.Guide(json_schema=PLAN))
as_code = P.SamplingConfig(temperature=0, max_gen_length=500, guide=P.Guide(regex=CODE))


@P.semantic_function(sampling=as_plan)
def plan(goal: P.Input, steps: P.Output) -> None:
    """A plan for {{goal}}, as JSON: {{steps}}"""


@P.semantic_function(sampling=as_code)
def code(goal: P.Input, letters: P.Output) -> None:
    """The code of {{goal}}: {{letters}}"""


@pytest.fixture(scope="module")
def bare() -> Iterator[tuple[Up, Event]]:
    """A stack without engines."""
    with data_folder() as folder, running(folder, "--backend", "sim", "--engines", "0") as up:
        yield up, up.wait_up()
        assert up.stop() == 0


@pytest.fixture
def engines(bare: tuple[Up, Event], tmp_path: Path) -> Iterator[Engines]:
    """Two engines with a tiny model of random weights: what it writes is held to the form alone."""
    model = write_tiny_model(tmp_path / "tiny")
    flags = ["--backend", "vllm", "--model", str(model), "--dtype", "float32"]
    # A token is a piece: of larger ones there are too few.
    flags += ["--kv-cache-mib", "64", "--threads", "1", "--stream-interval-ms", "0"]
    with attached.engines(*bare, tmp_path, flags, "e-a", "e-b", within_s=STARTS_WITHIN_S) as found:
        yield found


def check_plan(text: str) -> None:
    """The text is a plan."""
    made = json.loads(text)
    assert set(made) == {"title", "steps"}
    assert [set(step) for step in made["steps"]] == [{"n", "text"}] * STEPS
    assert all(0 <= step["n"] <= 99 and len(step["text"]) <= 12 for step in made["steps"])


def check_code(text: str) -> None:
    """The text is a code."""
    assert re.fullmatch(CODE, text)


def test_json_and_a_regular_expression_go_on_where_they_were(
    bare: tuple[Up, Event], engines: Engines
) -> None:
    """What is written behind the break may be another text than without it: the tokens of what was
    streamed are made from the text anew, and a model of random weights has no taste in tokens.
    """
    up, _ = bare
    victim = ""
    for (function, check), pieces in product(((plan, check_plan), (code, check_code)), (5, 40)):
        if victim:
            engines.start(victim)
            engines.wait_attached("e-a", "e-b", within_s=STARTS_WITHIN_S)
        with P.Session(up.url, timeout=120) as session:
            output = function("a harbour")
            stream, read = streamed(output, 1)
            victim = engine_of(up, session)
            read += islice(stream, pieces - 1)
            engines.kill(victim)
            text = "".join([*read, *stream])
            check(text)
            assert text == output.get()
            assert graph(up, session)["calls"][0]["attempt"] == 2
