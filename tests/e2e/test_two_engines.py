"""Graphs of calls run over several engines, and what goes wrong reaches whoever waits."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.support.up import Event, Up, data_folder, running
from tests.support.waiting import until

import parrot as P

pytestmark = pytest.mark.timeout(180)
short = P.SamplingConfig(temperature=0, max_gen_length=8)
endless = P.SamplingConfig(temperature=0, max_gen_length=300, ignore_tokenizer_eos=True)


@P.semantic_function(sampling=short)
def step(before: P.Input, after: P.Output) -> None:
    """Before: {{before}} After: {{after}}"""


@P.semantic_function(sampling=endless)
def talk(topic: P.Input, speech: P.Output) -> None:
    """Talk about {{topic}}: {{speech}}"""


@P.semantic_function(sampling=short)
def judge(speech: P.Input, verdict: P.Output) -> None:
    """What do you think of {{speech}}? {{verdict}}"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Up]:
    """Two simulated engines, fast ones."""
    with data_folder() as folder, running(folder, "--backend", "sim", "--engines", "2") as up:
        up.wait_up()
        yield up
        assert up.stop() == 0


@pytest.fixture(scope="module")
def bare() -> Iterator[tuple[Up, Event]]:
    """A stack without engines, to which tests attach their own; calls wait 8 s for one."""
    env = {"PARROT_ENGINE_WAIT_S": "8"}
    with data_folder() as folder, running(folder, "--backend", "sim", "--engines", "0", env=env) as up:
        yield up, up.wait_up()
        assert up.stop() == 0


@contextmanager
def slow_engine(up: Event, folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """An engine of 50 ms a token, attached by hand."""
    command = [sys.executable, "-m", "parrot_engine", "--engine-id", name, "--backend", "sim"]
    command += ["--manager-address", up["manager_address"], "--nats-url", up["nats_url"]]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen([*command, "--sim-step-ms", "50"], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def models(up: Up) -> list[str]:
    return [model["id"] for model in httpx.get(f"{up.url}/v1/models").json()["data"]]


def test_a_chain_runs_in_order_and_each_call_reads_the_one_before(stack: Up) -> None:
    with P.Session(stack.url) as session:
        text: P.SemanticVariable | str = "start"
        chain = [text := step(text) for _ in range(12)]
        assert chain[-1].get()
        calls = session.info().calls
        assert [call.state for call in calls] == ["done"] * 12
        for earlier, later in itertools.pairwise(calls):
            assert later.inputs["before"] == earlier.outputs["after"]
            # It may be sent ahead, and has its input no sooner than that is made.
            assert (later.ready_unix_ms or 0) >= (earlier.ended_unix_ms or 0)


def test_independent_calls_are_spread_over_the_engines(stack: Up) -> None:
    with P.Session(stack.url) as session:
        for answer in [step(f"question {number}") for number in range(16)]:
            answer.get()
        assert {call.engine for call in session.info().calls} == {"e-1", "e-2"}


def test_many_readers_stream_the_same_text(stack: Up) -> None:
    with P.Session(stack.url) as session:
        speech = talk("rivers")
        first = "".join(speech.stream())
        url = f"{stack.url}/v1/sessions/{session.id}/variables/{speech.id}"
        assert httpx.get(url).json()["value"] == first
        assert speech.get() == first


def test_a_client_that_goes_away_in_mid_stream_harms_nobody(stack: Up) -> None:
    with P.Session(stack.url) as session:
        speech = talk("mountains")
        session.flush()
        url = f"{stack.url}/v1/sessions/{session.id}/variables/{speech.id}/stream"
        with httpx.stream("GET", url) as gone_soon:
            assert next(line for line in gone_soon.iter_lines() if line.startswith("data:"))
        assert judge(speech).get()
        assert speech.get()
    assert httpx.get(f"{stack.url}/readyz").is_success


def test_an_engine_that_is_killed_and_not_replaced_fails_its_call_and_those_that_wait_for_it(
    bare: tuple[Up, Event], tmp_path: Path
) -> None:
    up, ready = bare
    with slow_engine(ready, tmp_path, "e-killed") as engine:
        until(lambda: models(up) == ["sim"])
        with P.Session(up.url, timeout=60):
            speech = talk("storms")
            verdict = judge(speech)
            stream = speech.stream(timeout=30)
            assert next(stream)
            engine.kill()
            with pytest.raises(P.CallFailed) as failed:
                list(stream)
            assert failed.value.type == "no_engine"
            with pytest.raises(P.CallFailed) as followed:
                verdict.get(timeout=10)
            assert (followed.value.type, followed.value.cause) == ("upstream_failed", "no_engine")
    until(lambda: models(up) == [])


def test_a_call_that_finds_no_engine_in_time_fails_with_that(bare: tuple[Up, Event]) -> None:
    up, _ = bare
    with P.Session(up.url), pytest.raises(P.CallFailed) as failed:
        step("anyone?").get(timeout=20)
    assert failed.value.type == "no_engine"


def test_a_call_waits_for_the_engine_that_comes(bare: tuple[Up, Event], tmp_path: Path) -> None:
    up, ready = bare
    with P.Session(up.url) as session:
        answer = step("anyone?")
        session.flush()
        with slow_engine(ready, tmp_path, "e-late"):
            assert answer.get(timeout=20)
    until(lambda: models(up) == [])
