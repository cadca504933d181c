"""`parrot trace`: from the SDK's calls to the lines of a terminal, through every process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.support.up import Up, data_folder, running
from tests.support.waiting import until

import parrot as P

pytestmark = pytest.mark.timeout(120)


@P.semantic_function(sampling=P.SamplingConfig(max_gen_length=20, ignore_tokenizer_eos=True))
def ask(question: P.Input, answer: P.Output) -> None:
    """Question: {{question}} Answer: {{answer}}"""


@pytest.fixture(scope="module")
def system() -> Iterator[Up]:
    with data_folder() as folder, running(folder, "--backend", "sim") as up:
        up.wait_up()
        yield up


def trace(up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`parrot trace`, run."""
    command = [sys.executable, "-m", "parrot_cli", "trace", "--url", up.url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def told(up: Up, session: str) -> dict[str, Any]:
    """What the API tells."""
    found: dict[str, Any] = httpx.get(f"{up.url}/v1/sessions/{session}/trace").raise_for_status().json()
    return found


def check(found: dict[str, Any]) -> None:
    """The path has no gap and sums to the whole."""
    assert math.isclose(sum(one["ms"] for one in found["stages"]), found["total_ms"], abs_tol=0.1)
    path = found["critical_path"]
    assert path[0]["start_ms"] == 0
    assert all(math.isclose(a["start_ms"] + a["ms"], b["start_ms"], abs_tol=0.01) for a, b in pairwise(path))
    assert math.isclose(path[-1]["start_ms"] + path[-1]["ms"], found["total_ms"], abs_tol=0.01)


def test_a_chains_time_is_told_while_it_is_open_and_afterwards(system: Up) -> None:
    with P.Session(system.url, label="a chain") as session:
        last = ask(ask(ask("why?")))
        assert last.get()
        open_still = told(system, session.id)
        check(open_still)
        assert not open_still["complete"]
    until(lambda: told(system, session.id)["complete"])
    found = told(system, session.id)
    check(found)
    assert {"c-1", "c-2", "c-3"} <= {one["call_id"] for one in found["critical_path"]}
    stages = {one["stage"]: one["ms"] for one in found["stages"]}
    # 20 steps of 10 ms and more, three times.
    assert stages["decode"] > 3 * 19 * 10
    assert "unexplained" not in stages
    shown = trace(system, session.id)
    assert shown.returncode == 0
    assert shown.stdout.startswith(session.id)
    assert "DDDD" in shown.stdout
    assert "if decode were free: -" in shown.stdout
    assert json.loads(trace(system, session.id, "--json").stdout) == found
    assert trace(system, "last").stdout == shown.stdout


def test_what_failed_is_explained_up_to_there(system: Up) -> None:
    sampling = {"max_tokens": 20, "ignore_eos": True}
    hole = {"name": "x", "in_out": "out", "semantic_var_id": "x", "transforms": ["json:no_such_field"]}
    call = {"name": "f", "prompt": "Say: {{x}}", "placeholders": [{**hole, "sampling": sampling}]}
    with httpx.Client(base_url=system.url, timeout=60) as http:
        session = http.post("/v1/sessions", json={}).json()["id"]
        answer = http.post(f"/v1/sessions/{session}/calls", json={"calls": [call]})
        assert answer.status_code == 201, answer.text
        ended = http.get(f"/v1/sessions/{session}/variables/x", params={"wait_s": 30}).json()
        assert ended["state"] == "failed"
        http.delete(f"/v1/sessions/{session}")
    found = told(system, session)
    check(found)
    stages = {one["stage"]: one["ms"] for one in found["stages"]}
    assert stages["decode"] > 19 * 10
    assert stages.get("unexplained", 0.0) < 0.1 * found["total_ms"]


def test_a_session_that_is_not_there_is_refused_in_a_line(system: Up) -> None:
    shown = trace(system, "s00-0000000000000000")
    assert shown.returncode == 4
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert "no" in shown.stderr
