"""`parrot run`, as a person and as a script use it, on a real stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.commands import CHAIN, SLOW, TOO_LONG, lasting, parrot
from tests.support.up import Up

pytestmark = pytest.mark.timeout(120)


PROGRAM = """
import os, sys
import parrot as P

@P.semantic_function(sampling=P.SamplingConfig(max_gen_length=6))
def ask(question: P.Input, answer: P.Output):
    '''{{question}} {{answer}}'''

with P.Session(label="from a program"):
    print(ask(sys.argv[1]).get())
print(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 7])
def test_run_gives_a_program_the_server_and_passes_on_how_it_ended(
    site: Up, tmp_path: Path, code: int
) -> None:
    file = tmp_path / "app.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "parrot_cli", "run", "--url", site.url, str(file), "--why?", str(code)]
    hidden = {**os.environ, "OPENAI_API_KEY": "sk-elsewhere"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=hidden)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == f"{site.url}/v1 none"
    assert "from a program: closed, 1 of 1 calls ended" in done.stderr


def test_run_reports_a_programs_sessions_as_json(site: Up, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "parrot_cli", "run", "--json", "--url", site.url, str(file), "x", "3"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit"]) == (3, 3)
    assert [session["label"] for session in report["sessions"]] == ["from a program"]


def test_run_prints_what_a_graph_makes(server: str, tmp_path: Path, http: httpx.Client) -> None:
    file, topic = tmp_path / "chain.json", tmp_path / "topic.txt"
    file.write_text(json.dumps(CHAIN))
    topic.write_text("the moon, 月")
    found = parrot("run", str(file))
    assert found.stdout.strip()
    assert "==" not in found.stdout
    session = found.stderr.split()[-1]
    assert http.get(f"/v1/sessions/{session}").json()["state"] == "closed"
    other = json.loads(parrot("run", "--json", "-q", str(file), f"topic=@{topic}").stdout)
    assert other["errors"] == {}
    assert other["outputs"].keys() == {"title"}
    kept = http.get(f"/v1/sessions/{other['session_id']}/variables/topic").json()
    assert kept["value"] == "the moon, 月"


def test_results_of_one_name_are_told_by_their_ids(server: str, tmp_path: Path) -> None:
    sampling = {"max_tokens": 4}
    calls = [
        {
            "prompt": f"{made}: {{{{out}}}}",
            "placeholders": [{"name": "out", "in_out": "out", "semantic_var_id": made, "sampling": sampling}],
        }
        for made in ("first", "second")
    ]
    file = tmp_path / "two.json"
    file.write_text(json.dumps({"calls": calls}))
    assert json.loads(parrot("run", "--json", str(file)).stdout)["outputs"].keys() == {"first", "second"}
    assert "== first ==" in parrot("run", str(file)).stdout


def test_run_says_what_of_a_graph_failed(server: str, tmp_path: Path) -> None:
    file = tmp_path / "long.json"
    file.write_text(json.dumps(TOO_LONG))
    found = parrot("run", str(file), code=1)
    assert "prompt_too_long" in found.stderr
    told = json.loads(parrot("run", "--json", str(file), code=1).stdout)
    assert told["errors"]["out"]["type"].endswith(":prompt_too_long")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", 2, "is no JSON"),
        ("[]", 2, "a JSON object"),
        ('{"calls": [{"prompt": "{{x", "placeholders": []}]}', 4, "invalid_template"),
        ('{"calls": "none"}', 4, "calls"),
        ('{"calls": [], "variables": [{"semantic_var_id": "a", "value": "\\ud83d"}]}', 4, "lone surrogate"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(
    server: str, tmp_path: Path, text: str, code: int, said: str
) -> None:
    file = tmp_path / "graph.json"
    file.write_text(text)
    assert said in parrot("run", str(file), code=code).stderr


def test_run_refuses_what_it_can_not_run(server: str, tmp_path: Path) -> None:
    assert "no such file" in parrot("run", "nowhere.py", code=2).stderr
    other = tmp_path / "app.txt"
    other.write_text("")
    assert ".py" in parrot("run", str(other), code=2).stderr
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(CHAIN))
    assert "NAME=TEXT" in parrot("run", str(graph), "topic", code=2).stderr
    assert "nowhere.txt" in parrot("run", str(graph), "topic=@nowhere.txt", code=2).stderr


def test_ctrl_c_ends_a_graph_and_its_session(site: Up, tmp_path: Path, http: httpx.Client) -> None:
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"calls": [lasting(SLOW)]}))
    command = [sys.executable, "-m", "parrot_cli", "run", "--url", site.url, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        assert program.stdout is not None
        session = program.stderr.readline().split()[-1]
        assert program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
    assert http.get(f"/v1/sessions/{session}").json()["state"] == "cancelled"
