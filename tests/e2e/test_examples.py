"""The examples run as a user runs them, on a real stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.up import Up, data_folder, running

pytestmark = pytest.mark.timeout(180)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def stack() -> Iterator[Up]:
    """A fast simulated engine: what these programs promise is the graph's, not the model's."""
    env = {"PARROT_SIM_STEP_MS": "1"}
    with data_folder() as folder, running(folder, "--backend", "sim", env=env) as up:
        up.wait_up()
        yield up
        assert up.stop() == 0


def run(up: Up, name: str, *arguments: str, said: str = "") -> str:
    """What an example prints; it must end well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        input=said,
        env={**os.environ, "PARROT_URL": up.url},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def graph(up: Up, label: str) -> dict[str, list[str]]:
    """The names of the calls of the newest session with a label, and the kinds of its blocks."""
    sessions = httpx.get(f"{up.url}/v1/sessions").json()["sessions"]
    session = next(session for session in sessions if session["label"] == label)
    found = httpx.get(f"{up.url}/v1/sessions/{session['id']}").json()
    assert {call["state"] for call in found["calls"]} == {"done"}
    return {
        "calls": [call["name"] for call in found["calls"]],
        "blocks": [block["kind"] for block in found["blocks"]],
    }


def test_first_app(stack: Up) -> None:
    assert "---" in run(stack, "first_app.py")


def test_chain_summary(stack: Up, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("A sentence about the harbour. " * 300)
    assert "5 parts" in run(stack, "chain_summary.py", str(file))
    assert graph(stack, "chain summary") == {"calls": ["begin", *["refine"] * 4], "blocks": []}


def test_map_reduce_summary(stack: Up, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("A sentence about the harbour. " * 300)
    said = run(stack, "map_reduce_summary.py", "--file", str(file), "--output-tokens", "8")
    assert "Summary:" in said
    assert set(graph(stack, "map-reduce summary")["calls"]) == {"summarise_part", "combine"}


def test_coding_team(stack: Up) -> None:
    said = run(stack, "coding_team.py", "a game of snake")
    found = graph(stack, "coding team")
    assert found["blocks"] == ["map"]
    files = found["calls"].count("coder")
    assert files >= 1
    names = {"architect": 1, "coder": files, "reviewer": files, "reviser": files}
    assert {name: found["calls"].count(name) for name in names} == names
    assert f"{1 + 3 * files} calls" in said


def test_search_copilot_runs_its_tool_in_its_own_process(stack: Up, tmp_path: Path) -> None:
    passage = (
        "The lighthouse keeper winds the clockwork of the lamp every evening before the ships come in. " * 2
    )
    (tmp_path / "keeper.md").write_text(passage)
    said = run(stack, "search_copilot.py", "Who winds the clockwork?", "--folder", str(tmp_path))
    assert said.startswith("searched for: ")
    assert graph(stack, "search copilot")["calls"] == ["plan", "search", "reply"]


def test_shared_prompt_chat_computes_the_conversation_once(stack: Up) -> None:
    said = run(stack, "shared_prompt_chat.py", "--say", "Good morning", "--say", "When do you close?")
    again = run(stack, "shared_prompt_chat.py", said="Are dogs allowed?\n")
    _, second = cached(said)
    # The system prompt, of whoever chatted before; and, in a conversation, what was said as well.
    (first,) = cached(again)
    assert first > 500
    assert second > first


def cached(said: str) -> list[int]:
    """Of each message: the tokens of its prompt that were there already."""
    told = [line for line in said.splitlines() if "were there already" in line]
    return [int(line.split("(")[1].split()[0]) for line in told]


def test_verifier_loop(stack: Up) -> None:
    said = run(stack, "verifier_loop.py", "Why is the sea salty?")
    rounds = int(said.split("--- after ")[1].split()[0])
    found = graph(stack, "verifier loop")
    assert found["blocks"] == ["loop"]
    assert found["calls"] == ["answer", *["rewrite", "judge"] * rounds]


@pytest.mark.parametrize("name", ["chain_summary", "coding_team", "search_copilot", "shared_prompt_chat"])
def test_what_they_are_compared_with_runs_too(stack: Up, name: str) -> None:
    plain = EXAMPLES.parent / "benchmarks" / "gateway" / "plain" / f"{name}.py"
    said = ["--say", "Good morning"] if name == "shared_prompt_chat" else []
    command = [sys.executable, "-m", "parrot_cli", "run", "--url", stack.url, str(plain), *said]
    env = {**os.environ, "MODEL": "sim"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20


def test_a_graph_that_is_written_down(stack: Up) -> None:
    command = [sys.executable, "-m", "parrot_cli", "run", "--url", stack.url, "--json", "improve.json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"].keys() == {"final"}
    assert graph(stack, "improve")["blocks"] == ["map", "loop"]


@pytest.mark.parametrize("name", ["coding_team.py", "shared_prompt_chat.py"])
def test_an_example_without_a_server_says_so_and_fails(name: str) -> None:
    arguments = ["--say", "x"] if name.startswith("shared") else []
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PARROT_URL": "http://127.0.0.1:1"},
    )
    assert done.returncode == 1
    assert "can't be reached" in done.stderr
    assert "Traceback" not in done.stderr
