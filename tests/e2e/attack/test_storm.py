"""One tenant sends all it can: the other one's work goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import httpx
import pytest
import requests
from tests.support.attack import ANSWER_S, Attack

pytestmark = pytest.mark.timeout(180)

LONG: Final = {"max_tokens": 30_000, "ignore_eos": True}
JSON: Final = {"Content-Type": "application/json"}
SILENT, STREAMS, PRESSING, WORK = 200, 60, 4, 20
"""Silent connections, streams, threads that send without a pause; and calls of the other tenant meanwhile."""


@contextmanager
def storm(attack: Attack) -> Iterator[None]:
    """What one tenant can do to a server: silence, long streams, bodies of many megabytes, many requests."""
    host, port = attack.url.removeprefix("http://").split(":")
    ours, over = attack.attacker, threading.Event()
    endless = {"name": "out", "in_out": "out", "semantic_var_id": "endless", "sampling": LONG}
    session = ours.http.post("/v1/sessions", json={}).json()["id"]
    call = {"prompt": "On: {{out}}", "placeholders": [endless]}
    ours.http.post(f"/v1/sessions/{session}/calls", json=call).raise_for_status()
    stream = f"/v1/sessions/{session}/variables/endless/stream"
    big = json.dumps(
        {"calls": [], "variables": [{"semantic_var_id": "x", "value": "x" * (9 << 20)}]}
    ).encode()
    answers: list[int] = []

    def press() -> None:
        with httpx.Client(base_url=attack.url, headers=ours.headers, timeout=60) as http:
            while not over.is_set():
                answers.append(http.get("/v1/sessions", params={"limit": 200}).status_code)
                answer = http.post(f"/v1/sessions/{session}/calls", content=big, headers=JSON)
                answers.append(answer.status_code)

    with ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection((host, int(port))))
        for _ in range(STREAMS):
            reading = requests.get(attack.url + stream, headers=ours.headers, stream=True, timeout=60)
            stack.enter_context(reading)
        pressing = [threading.Thread(target=press) for _ in range(PRESSING)]
        for thread in pressing:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in pressing:
                thread.join()
    ours.http.delete(f"/v1/sessions/{session}").raise_for_status()
    assert set(answers) == {200, 413}


def test_a_storm_of_one_tenant_leaves_the_other_at_work(attack: Attack) -> None:
    def work(number: int) -> float:
        began = time.monotonic()
        out = {
            "name": "out",
            "in_out": "out",
            "semantic_var_id": f"work-{number}",
            "sampling": {"max_tokens": 8},
        }
        body = {"prompt": "Work: {{out}}", "placeholders": [out]}
        session = f"/v1/sessions/{attack.victim.things['session_id']}"
        attack.victim.http.post(f"{session}/calls", json=body).raise_for_status()
        answer = attack.victim.http.get(f"{session}/variables/work-{number}", params={"wait_s": ANSWER_S})
        assert answer.json()["state"] == "ready"
        return time.monotonic() - began

    with storm(attack):
        slowest = max(work(number) for number in range(WORK))
    assert slowest < ANSWER_S / 2
