"""Typed outputs and chats of the SDK, with the real model on the real stack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
import pytest
from tests.e2e.conftest import LOADS_WITHIN_S
from tests.support import pages
from tests.support.up import Up

import parrot as P

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LOADS_WITHIN_S + 120)]
greedy = P.SamplingConfig(temperature=0, max_gen_length=96)


class Weather(pydantic.BaseModel):
    """A model whose fields are held to sets, so that a small model ends them."""

    sky: Literal["blue", "grey"]
    degrees: Literal[10, 20]


@dataclass
class Day:
    """A record that holds one."""

    name: Literal["Monday", "Sunday"]
    weather: Weather
    warm: bool


report = P.define(
    "report",
    "As JSON, the weather: {{text}}\n{{weather}}",
    outputs={"weather": Weather},
    sampling=greedy,
)
day = P.define("day", "As JSON, {{text}}\n{{day}}", outputs={"day": Day}, sampling=greedy)
rate = P.define("rate", "{{text}} It is {{verdict}}", outputs={"verdict": Literal["good", "bad"]})


def test_types_hold_the_model_to_them_and_come_back_as_values(real_stack: Up) -> None:
    with P.Session(real_stack.url):
        weather, sunday, verdict = report("grey and 10 degrees"), day("a Sunday"), rate("It rains.")
        days = P.map(day, ["a Monday", "a Sunday"])
        found = weather.get()
        assert isinstance(found, Weather)
        assert json.loads(weather.content or "") == found.model_dump()
        assert isinstance(sunday.get().weather, Weather)
        assert verdict.get() in {"good", "bad"}
        assert [type(each) for each in days.get()] == [Day, Day]
        assert P.retry(lambda: report("blue"), max_rounds=1).get().sky in {"blue", "grey"}


def test_the_page_of_the_sdk_runs_as_it_is_written(real_stack: Up, tmp_path: Path) -> None:
    done = pages.run("\n".join(pages.pieces("sdk.md", "real model")), real_stack.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert " was {" in done.stdout
