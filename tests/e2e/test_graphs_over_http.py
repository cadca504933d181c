"""Graphs that unfold, and code among their nodes, over HTTP on the whole system."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.support.up import Up, data_folder, running
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]
Body = dict[str, Any]


@pytest.fixture(scope="module")
def stack() -> Iterator[Up]:
    """Two managers, an engine, and a sandbox."""
    flags = ["--backend", "sim", "--managers", "2", "--sandbox"]
    with data_folder() as folder, running(folder, *flags) as up:
        up.wait_up(120)
        yield up
        assert up.stop() == 0


class Session:
    """A session, as a program without the SDK has it."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.id = str(self.http.post("/v1/sessions", json={}).json()["id"])
        self._path = f"/v1/sessions/{self.id}"

    def submit(self, body: Body) -> Body:
        """What the server answers to a batch."""
        return self._ok(self.http.post(f"{self._path}/calls", json=body), 201)

    def value(self, variable_id: str) -> str:
        """A variable's value."""
        found = self._ok(self.http.get(f"{self._path}/variables/{variable_id}"))
        assert found["state"] == "ready", json.dumps(found["error"])
        return str(found["value"])

    def ended(self, variable_id: str) -> Body:
        """A variable at its end, whatever that is."""
        found = self._ok(self.http.get(f"{self._path}/variables/{variable_id}"))
        assert found["state"] in {"ready", "failed", "cancelled"}, found
        return found

    def graph(self) -> Body:
        """The session as it is."""
        return self._ok(self.http.get(self._path))

    def ask(self, call_id: str, what: str, worker: str, **body: Any) -> httpx.Response:
        """What a worker is answered."""
        return self.http.post(f"{self._path}/calls/{call_id}/{what}", json={"worker": worker, **body})

    @staticmethod
    def _ok(answer: httpx.Response, status: int = 200) -> Body:
        assert answer.status_code == status, answer.text
        found: Body = answer.json()
        return found


@pytest.fixture
def session(stack: Up) -> Iterator[Session]:
    made = Session(stack.url)
    yield made
    made.http.delete(f"/v1/sessions/{made.id}")
    made.http.close()


def native(inputs: str, output: str, **kind: Any) -> Body:
    """A call of code whose placeholders are named as its variables."""
    holes = [{"name": name, "in_out": "in", "semantic_var_id": name} for name in inputs.split()]
    made = {"name": output, "in_out": "out", "semantic_var_id": output}
    return {"native": kind or {"kind": "client"}, "placeholders": [*holes, made]}


def python(source: str, inputs: str, output: str, **more: Any) -> Body:
    """A call of a function `f` in the sandbox."""
    return native(inputs, output, kind="sandbox", source=source, entry="f", **more)


def given(**values: str) -> list[Body]:
    return [{"semantic_var_id": name, "value": value} for name, value in values.items()]


def test_the_example_of_the_documentation_runs(session: Session) -> None:
    text = (ROOT / "docs" / "graphs.md").read_text()
    example = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0]
    answer = session.submit(json.loads(example))
    assert [(block["name"], block["kind"]) for block in answer["blocks"]] == [
        ("describe each", "map"),
        ("improve", "loop"),
    ]
    assert answer["blocks"][0]["outputs"] == [{"name": "sentence", "semantic_var_id": "draft"}]
    assert session.value("final")
    topics = [line for line in session.value("topics").splitlines() if line.strip()]
    graph = session.graph()
    each, improve = graph["blocks"]
    assert (each["state"], each["instances"]) == ("done", len(topics))
    assert each["inputs"] == [{"name": "map.list", "semantic_var_id": "topics"}]
    assert 1 <= improve["instances"] <= 5
    instances = [call for call in graph["calls"] if call["block_id"] == each["id"]]
    assert len(instances) == len(topics)
    drafts = [session.value(call["outputs"][0]["semantic_var_id"]) for call in instances]
    assert session.value("draft") == "\n".join(drafts)


def test_a_condition_skips_and_a_selection_goes_round_it(session: Session) -> None:
    shout = python("def f(text):\n    return text.upper()", "text", "loud")
    quiet = python("def f(text):\n    return text.lower()", "text", "quiet")
    asked = {"semantic_var_id": "text", "transforms": ["json:polite"], "equals": "true"}
    session.submit(
        {
            "variables": given(text='{"polite": true}'),
            "calls": [{**shout, "when": {**asked, "negate": True}}, {**quiet, "when": asked}],
            "blocks": [{"select": {"from": ["loud", "quiet"], "semantic_var_id": "said"}}],
        }
    )
    assert session.value("said") == '{"polite": true}'
    skipped = session.ended("loud")
    assert (skipped["state"], skipped["error"]["type"]) == ("cancelled", "urn:parrot:problem:skipped")


def test_a_block_that_is_cancelled_takes_its_instances_along(session: Session) -> None:
    body = {
        "variables": given(list="a\nb"),
        "blocks": [
            {
                "map": {
                    "list": "list",
                    "form": "lines",
                    "item": "item",
                    "body": [native("item", "made")],
                    "collected": [{"from": "made", "semantic_var_id": "all"}],
                }
            }
        ],
    }
    (block,) = session.submit(body)["blocks"]
    until(lambda: len(session.graph()["calls"]) == 2)
    first, second = (call["id"] for call in session.graph()["calls"])
    assert session.ask(first, "claim", "w").json()["inputs"] == {"item": "a"}
    answer = session.http.post(f"/v1/sessions/{session.id}/calls/{block['id']}/cancel")
    assert set(answer.json()["call_ids"]) == {first, second}
    assert session.ended("all")["error"]["type"].endswith(":cancelled")
    told = session.ask(first, "renew", "w")
    assert (told.status_code, told.json()["cause_type"]) == (409, "urn:parrot:problem:cancelled")


def test_a_workers_node_stands_between_others(session: Session) -> None:
    session.submit(
        {
            "variables": given(a="hey"),
            "calls": [
                native("b", "c"),
                python("def f(a):\n    return a.upper()", "a", "b"),
                python("def f(c):\n    return c * 2", "c", "d"),
            ],
        }
    )
    claimed = session.ask("c-1", "claim", "w")
    assert claimed.json() == {"state": "claimed", "inputs": {"b": "HEY"}, "lease_s": 15.0}
    assert session.ask("c-1", "claim?wait_s=0", "other").status_code == 409
    assert session.ask("c-1", "result", "w", outputs={"c": "ho"}).json() == {"state": "done"}
    assert session.value("d") == "hoho"
    shown = {call["id"]: (call["native"], call["engine"]) for call in session.graph()["calls"]}
    assert shown == {
        "c-1": ("client", "client/w"),
        "c-2": ("sandbox", "sandbox"),
        "c-3": ("sandbox", "sandbox"),
    }


def test_a_worker_that_waits_hears_at_once(session: Session) -> None:
    session.submit({"calls": [native("x", "y"), native("", "x")]})
    assert session.ask("c-1", "claim?wait_s=0", "w").json()["state"] == "waiting"
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(session.ask("c-1", "claim?wait_s=60", "w")))
    waiting.start()
    session.ask("c-2", "claim", "other")
    began = time.monotonic()
    session.ask("c-2", "result", "other", outputs={"x": "now"})
    waiting.join(30)
    assert answers[0].json()["inputs"] == {"x": "now"}
    assert time.monotonic() - began < 10


def test_claims_go_on_when_a_manager_is_killed(stack: Up) -> None:
    # Of so many, the one that is killed serves some.
    sessions = [Session(stack.url) for _ in range(8)]
    for session in sessions:
        session.submit(
            {
                "variables": given(a="hey"),
                "calls": [native("a", "b"), python("def f(b):\n    return b", "b", "c")],
            }
        )
        assert session.ask("c-1", "claim", "w").json()["state"] == "claimed"
    psutil.Process(stack.pids()["manager m-1"]).kill()
    for session in sessions:
        # Asked for again and again by the gateway, until whoever takes the session over answers.
        assert session.ask("c-1", "claim?wait_s=0", "other").status_code == 409
        assert session.ask("c-1", "renew", "w").json() == {"lease_s": 15.0}
        for _ in range(2):
            assert session.ask("c-1", "result", "w", outputs={"b": "made"}).json() == {"state": "done"}
    for session in sessions:
        assert session.value("c") == "made"
        session.http.close()


@pytest.mark.parametrize(
    ("source", "more", "why"),
    [
        ("def f():\n    while True: pass", {"timeout_s": 0.2}, "longer than it may"),
        ("def f():\n    return 'x' * 10 ** 12", {"memory_bytes": 1 << 20}, "MemoryError"),
        ("import socket\ndef f(): return ''", {}, "No module named 'socket'"),
        ("def f():\n    return open('/etc/passwd').read()", {}, "PermissionError"),
        ("def f():\n    return 1", {}, "it has to return a str"),
    ],
)
def test_code_that_goes_wrong_fails_its_call_and_says_why(
    session: Session, source: str, more: Body, why: str
) -> None:
    session.submit({"calls": [python(source, "", "made", **more), native("made", "next")]})
    error = session.ended("made")["error"]
    assert error["type"] == "urn:parrot:problem:native_failed"
    assert why in error["detail"]
    assert session.ended("next")["error"]["cause_type"] == "urn:parrot:problem:native_failed"


@pytest.mark.parametrize(
    ("what", "body", "status", "field"),
    [
        ("claim", {}, 400, "worker"),
        ("claim", {"worker": ""}, 400, "worker"),
        ("claim", {"worker": "a\nb"}, 400, "worker"),
        ("claim", {"worker": "w" * 201}, 413, "worker"),
        ("claim?wait_s=-1", {"worker": "w"}, 400, "wait_s"),
        ("claim?wait_s=nan", {"worker": "w"}, 400, "wait_s"),
        ("renew", {"worker": "w", "more": 1}, 400, "more"),
        ("result", {"worker": "w"}, 400, "body"),
        ("result", {"worker": "w", "outputs": {}, "error": {"message": "x"}}, 400, "body"),
        ("result", {"worker": "w", "outputs": {"y": 1}}, 400, "outputs.y"),
        ("result", {"worker": "w", "outputs": {}}, 400, "outputs.y"),
        ("result", {"worker": "w", "outputs": {"y": "", "z": ""}}, 400, "outputs.z"),
        ("result", {"worker": "w", "error": {"message": ""}}, 400, "error.message"),
        ("result", {"worker": "w", "error": {}}, 400, "error.message"),
        ("result", {"worker": "other", "outputs": {"y": ""}}, 409, ""),
    ],
)
def test_what_a_worker_says_wrongly_is_named(
    session: Session, what: str, body: Body, status: int, field: str
) -> None:
    session.submit({"calls": [native("", "y")]})
    session.ask("c-1", "claim", "w")
    answer = session.http.post(f"/v1/sessions/{session.id}/calls/c-1/{what}", json=body)
    assert (answer.status_code, answer.json().get("field", "")) == (status, field), answer.text
    assert session.ask("c-1", "result", "w", outputs={"y": "fine"}).json() == {"state": "done"}
