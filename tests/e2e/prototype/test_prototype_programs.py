"""Programs in the prototype's style run as they are, each a process of its own, and say when they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.up import Up

PROGRAMS = Path(__file__).parent / "programs"
WITHIN_S = 60


def run(stack: Up, program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A program, run to its end."""
    return subprocess.run(
        [sys.executable, str(PROGRAMS / f"{program}.py"), stack.url, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def told(stack: Up, program: str, *arguments: str, stdin: str = "") -> dict[str, str]:
    """What a program that went well printed, by the word before the colon."""
    done = run(stack, program, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    # Of one that goes well, nothing is told on the side.
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if ": " in line]
    return dict(line.split(": ", 1) for line in lines)


def test_imported_functions_chains_and_both_kinds_of_programs(stack: Up) -> None:
    lines = told(stack, "letters")
    assert lines.keys() == {"calm", "brisk", "letter", "joined", "timed"}
    assert all(lines.values())
    assert lines["timed"] == "True True False"


def test_a_stateful_chat_and_several_outputs(stack: Up) -> None:
    done = run(stack, "chat", stdin="hello\nand you?\nexit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ai: ") == 2
    assert "explained: " in done.stdout
    assert "told: " in done.stdout


def test_native_functions_run_in_the_client_between_semantic_ones(stack: Up) -> None:
    lines = told(stack, "natives")
    assert lines["both"].endswith("!!!|set later")
    assert lines["thread"] == "a|b"


def test_native_functions_run_in_bodies_of_maps_and_loops(stack: Up) -> None:
    assert told(stack, "graphs") == {"pairs": "True", "grown": "xxxx", "failed": "native_failed"}


def test_batches_preallocated_outputs_and_defined_functions_of_the_version_before(stack: Up) -> None:
    assert told(stack, "batches") == {
        "combined": "True",
        "parts": "4",
        "awaited": "True",
        "tokens": "True",
        "scope": "True",
        "global": "True",
    }


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("native", "KeyError: 'no such thing: x'"),
        ("timeout", "slow ran for more than 0.2 s, its timeout"),
        ("forgetful", "forgetful ended without a text for out"),
        ("model", "no-such-model"),
        ("python", "ZeroDivisionError"),
        ("nothing", "SessionError"),
    ],
)
def test_what_goes_wrong_is_raised_and_the_process_says_so(stack: Up, program: str, said: str) -> None:
    done = run(stack, "failing", program)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" in done.stderr
    assert "not reached" not in done.stdout


def test_a_program_leaves_no_session_open(stack: Up, http: httpx.Client) -> None:
    run(stack, "failing", "python")
    told(stack, "batches")
    open_sessions = http.get("/v1/sessions", params={"state": "open"}).json()
    assert [session for session in open_sessions["sessions"] if session["label"] == ""] == []
