"""Two tenants of one server: one that works, and one that sends it whatever there is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import requests
from schemathesis import Case

from tests.support.up import Up, data_folder, running

ANSWER_S: Final = 20.0
BODY_BYTES: Final = 1 << 20
SECRET: Final = "the-password-is-swordfish"
STREAM: Final = "text/event-stream"
AnyCase = Case[Any]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's key, and by their parameters' names the ids of what it has."""

    headers: dict[str, str]
    things: dict[str, str]
    http: httpx.Client

    def graph(self) -> dict[str, Any]:
        """Its session as it is."""
        found: dict[str, Any] = self.http.get(f"/v1/sessions/{self.things['session_id']}").json()
        return found


@dataclass(slots=True)
class Attack:
    """What is sent to, and what was answered."""

    url: str
    attacker: Tenant
    victim: Tenant
    statuses: dict[int, int] = field(default_factory=dict)

    def send(self, case: AnyCase, aim: str) -> None:
        """Sends a request, and judges its answer."""
        targets = {"theirs": self.victim.things, "ours": self.attacker.things}.get(aim, {})
        _point(case, targets)
        try:
            request = case.as_transport_kwargs(base_url=self.url, headers=self.attacker.headers)
            began = time.monotonic()
            answer = requests.request(**request, stream=True, timeout=ANSWER_S)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # No client could have sent it.
        with answer:
            self._judge(case, answer, aim, began)

    def _judge(self, case: AnyCase, answer: requests.Response, aim: str, began: float) -> None:
        streams = answer.headers.get("content-type", "").startswith(STREAM)
        # Of a stream that may go on, the beginning.
        body = next(answer.iter_content(1024), b"") if streams else answer.content
        told = f"{case.as_curl_command()}\n{answer.status_code} {body[:500]!r}"
        self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, told
        assert time.monotonic() - began < ANSWER_S, told
        assert len(body) < BODY_BYTES, told
        assert SECRET.encode() not in body, told
        if answer.status_code >= 400:
            assert _says_why(answer, body), told
        if aim == "theirs" and "session_id" in (case.path_parameters or {}):
            assert answer.status_code >= 400, told


def _point(case: AnyCase, targets: dict[str, str]) -> None:
    """Aims a request at things that are there."""
    parameters = case.path_parameters or {}
    case.path_parameters = {name: targets.get(name, value) for name, value in parameters.items()}
    query = case.query or {}
    if "wait_s" in query:
        # What holds an answer back is asked for, and not for long.
        query["wait_s"] = "0.05" if isinstance(query["wait_s"], int | float) else query["wait_s"]
    case.body = _pointed(case.body, targets)


def _pointed(body: Any, targets: dict[str, str]) -> Any:
    if isinstance(body, list):
        return [_pointed(item, targets) for item in body]
    if not isinstance(body, dict):
        return body
    return {
        name: targets[name] if name in targets and isinstance(value, str) else _pointed(value, targets)
        for name, value in body.items()
    }


def _says_why(answer: requests.Response, body: bytes) -> bool:
    """A problem document, or an error as OpenAI's clients read it."""
    if answer.request.method == "HEAD":
        return True
    told = json.loads(body)
    problem = {"type", "title", "status", "detail", "may_retry"} <= told.keys()
    return problem or bool(told.get("error"))


def key_of(up: Up, tenant: str) -> str:
    """A new key."""
    command = [sys.executable, "-m", "parrot_cli", "keys", "create", tenant, "--data-dir", str(up.folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def settled(up: Up, name: str, said: str) -> Tenant:
    """A tenant with a session that has a value, a call that is done, and a response."""
    headers = {"Authorization": f"Bearer {key_of(up, name)}"}
    http = httpx.Client(base_url=up.url, headers=headers, timeout=60)
    session = http.post("/v1/sessions", json={"label": said, "timeout_s": 600}).json()["id"]
    out = {"name": "out", "in_out": "out", "semantic_var_id": "out", "sampling": {"max_tokens": 4}}
    told = {"name": "told", "in_out": "in", "value": said}
    body = {"prompt": "{{told}}: {{out}}", "placeholders": [told, out], "name": "known"}
    http.post(f"/v1/sessions/{session}/calls", json=body).raise_for_status()
    http.get(f"/v1/sessions/{session}/variables/out").raise_for_status()
    response = http.post("/v1/responses", json={"model": "sim", "input": said, "max_output_tokens": 4}).json()
    things = {"session_id": session, "call_id": "c-1", "response_id": response["id"]}
    things |= dict.fromkeys(("variable_id", "semantic_var_id", "var_id"), "out")
    return Tenant(headers, things, http)


@contextmanager
def running_attack() -> Iterator[Attack]:
    """A stack that asks for keys, with two tenants. At the end no service has met what it did not expect."""
    env = {"PARROT_SIM_STEP_MS": "0.2"}
    with data_folder() as folder, running(folder, "--backend", "sim", "--keys", env=env) as up:
        up.wait_up()
        made = Attack(up.url, settled(up, "attacker", "harmless"), settled(up, "victim", SECRET))
        yield made
        made.attacker.http.close()
        made.victim.http.close()
        _check_logs(up.folder)
        assert up.stop() == 0


def _check_logs(folder: Path) -> None:
    """No service met what it did not expect, and none wrote down what was said."""
    for log in (folder / "logs").glob("*.log"):
        text = log.read_text(errors="replace")
        assert SECRET not in text.replace(f'"label": "{SECRET}"', ""), log
        if log.name.startswith(("gateway", "manager", "engine")):
            bugs = [line for line in text.splitlines() if '"level": "error"' in line or "Traceback" in line]
            assert bugs == [], log
