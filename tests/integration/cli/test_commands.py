"""The commands that look and cancel, as a person and as a script use them, on a real stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest
from tests.support.commands import CHAIN, SLOW, columns, finished, lasting, made, parrot
from tests.support.nats import free_port
from tests.support.up import Up
from tests.support.waiting import until

import parrot as P

pytestmark = pytest.mark.timeout(120)


def test_ps_lists_open_sessions_and_ended_ones_when_asked(server: str, http: httpx.Client) -> None:
    ended, still_open = made(http, "over"), made(http, "going on", CHAIN)
    finished(http, still_open, "title")
    http.delete(f"/v1/sessions/{ended}")

    def listed() -> bool:
        return any("going on" in line and "2/2" in line for line in parrot("ps").stdout.splitlines())

    until(listed)
    shown = parrot("ps").stdout
    assert still_open in shown
    assert ended not in shown
    assert ended in parrot("ps", "--all").stdout
    found = json.loads(parrot("ps", "--state", "closed", "--json").stdout)["sessions"]
    assert {session["state"] for session in found} == {"closed"}
    assert ended in {session["id"] for session in found}
    http.delete(f"/v1/sessions/{still_open}")


def test_ps_shows_so_many_and_says_that_there_are_more(server: str, http: httpx.Client) -> None:
    sessions = [made(http, f"number {number}") for number in range(4)]
    shown = parrot("ps", "-n", "3")
    assert [columns(line)[0] for line in shown.stdout.splitlines()[1:]] == sessions[:0:-1]
    assert "--limit" in shown.stderr
    assert parrot("ps", "-n", "500").stderr == ""
    for session in sessions:
        http.delete(f"/v1/sessions/{session}")


def test_a_list_goes_on_page_after_page_over_http(server: str, http: httpx.Client) -> None:
    sessions = [made(http) for _ in range(5)]
    found: list[str] = []
    after = ""
    while len(found) < len(sessions):
        page = http.get("/v1/sessions", params={"limit": 2, "after": after}).json()
        found += [session["id"] for session in page["sessions"]]
        after = page["next"] or ""
    assert found[: len(sessions)] == sessions[::-1]
    for session in sessions:
        http.delete(f"/v1/sessions/{session}")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "asleep"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"after": "yesterday"}, "after"),
        ({"after": "1-s00-0000000000000000\0"}, "after"),
    ],
)
def test_a_list_that_makes_no_sense_is_a_problem_with_its_field(
    http: httpx.Client, query: dict[str, str], field: str
) -> None:
    answer = http.get("/v1/sessions", params=query)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_graph_is_drawn_and_written_for_other_programs(server: str, http: httpx.Client) -> None:
    session = made(http, "a chain", CHAIN)
    finished(http, session, "title")
    lines = parrot("graph", "last").stdout.splitlines()
    assert lines[0].startswith(f"{session}  open  a chain")
    assert [columns(line)[0] for line in lines[1:]] == ["● describe", "● title"]
    dot = parrot("graph", session, "--dot").stdout
    assert '"c-1" -> "c-2" [label="text"];' in dot
    assert '"given:topic" -> "c-1" [label="topic"];' in dot
    assert 'n0 -->|"text"| n1' in parrot("graph", session, "--mermaid").stdout
    graph = json.loads(parrot("graph", session, "--json").stdout)
    assert [call["name"] for call in graph["calls"]] == ["describe", "title"]
    assert "choose one" in parrot("graph", session, "--json", "--dot", code=2).stderr
    http.delete(f"/v1/sessions/{session}")


def test_logs_tell_what_happened_and_what_was_written(server: str, http: httpx.Client) -> None:
    session = made(http, "told", CHAIN)
    values = finished(http, session, "text", "title")
    http.delete(f"/v1/sessions/{session}")
    said = parrot("logs", session).stdout
    places = [said.index(part) for part in ("open", "describe  accepted", "describe  done", "title  done")]
    assert places == sorted(places)
    assert f"text: {values['text']}" in said
    assert "closed  after" in said
    assert values["text"] not in parrot("logs", session, "--no-text").stdout
    entries = [json.loads(line) for line in parrot("logs", session, "--json").stdout.splitlines()]
    assert {"kind": "text", "id": "title", "details": values["title"]}.items() <= next(
        entry for entry in entries if entry["kind"] == "text" and entry["id"] == "title"
    ).items()


def test_logs_follow_a_session_to_its_end(site: Up, http: httpx.Client) -> None:
    session = made(http, "followed")
    command = [sys.executable, "-m", "parrot_cli", "logs", "-f", "--json", session, "--url", site.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        lines = iter(following.stdout or ())
        assert json.loads(next(lines))["state"] == "open"
        assert http.post(f"/v1/sessions/{session}/calls", json=CHAIN).status_code == 201
        title = finished(http, session, "title")["title"]
        http.delete(f"/v1/sessions/{session}")
        entries = [json.loads(line) for line in lines]
        assert following.wait(30) == 0
    assert entries[-1] | {"unix_ms": 0} == {
        "unix_ms": 0,
        "kind": "session",
        "id": session,
        "name": "",
        "state": "closed",
        "details": "",
    }
    assert [entry["details"] for entry in entries if entry["id"] == "title"] == [title]
    assert {("c-1", "done"), ("c-2", "done")} <= {(entry["id"], entry["state"]) for entry in entries}


def test_cancel_ends_calls_or_the_whole_session(server: str, http: httpx.Client) -> None:
    session = made(http, "cancelled", {"calls": [lasting(SLOW)]})
    assert parrot("cancel", session, "c-1").stdout == "cancelled c-1\n"
    assert parrot("cancel", session, "c-1").stdout == "nothing was left to cancel\n"
    assert "--subtree" in parrot("cancel", session, "--subtree", code=2).stderr
    assert parrot("cancel", session).stdout == f"{session} closed\n"
    lively = made(http, "cancelled", {"calls": [lasting(SLOW)]})
    assert parrot("cancel", lively).stdout == f"{lively} cancelled\n"
    assert json.loads(parrot("cancel", lively, "--json").stdout)["state"] == "cancelled"


def test_engines_are_listed(server: str) -> None:
    lines = parrot("engines").stdout.splitlines()
    assert lines[1].split()[:4] == ["e-1", "sim", "ready", "0/64"]
    assert json.loads(parrot("engines", "--json").stdout)["engines"][0]["id"] == "e-1"


@pytest.mark.parametrize(
    "command", [["ps"], ["engines"], ["logs", "last"], ["graph", "last"], ["cancel", "last"]]
)
def test_a_server_that_is_not_there_is_named_with_the_way_out(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = parrot(*command, "--url", url, code=3).stderr
    assert url in said
    assert "parrot up" in said
    assert len(said.splitlines()) == 1


def test_what_the_server_refuses_is_told_in_its_words(server: str) -> None:
    nowhere = "s00-0000000000000000"
    for command in ("graph", "logs", "cancel"):
        assert "not_found" in parrot(command, nowhere, code=4).stderr
        assert "not_found" in parrot(command, "../../healthz", code=4).stderr
        problem = json.loads(parrot(command, nowhere, "--json", code=4).stderr)
        assert (problem["status"], problem["type"]) == (404, "urn:parrot:problem:not_found")


@pytest.mark.parametrize("flags", [("--url", "localhost:8080"), ("--url", ""), ("--api-key", "k\né")])
def test_flags_that_make_no_sense_are_named(flags: tuple[str, str]) -> None:
    assert flags[0] in parrot("ps", *flags, code=2).stderr


def test_a_manager_that_dies_is_started_again_and_nothing_is_lost(site: Up) -> None:
    first = site.pids()["manager m-1"]
    with P.Session(site.url) as session:
        ask = P.semantic_function(sampling=P.SamplingConfig(max_gen_length=200))(_ask)
        answers = [ask(str(number)) for number in range(8)]
        session.flush()
        os.kill(first, signal.SIGKILL)
        died = site.wait_for("died", "manager m-1")
        assert "started again" in died["text"]
        assert all(answer.get(timeout=60) for answer in answers)
    again = site.wait_for("ready", "manager m-1")
    assert again["pid"] != first
    with P.Session(site.url) as session:
        assert ask("again").get(timeout=60)


def _ask(question: P.Input, answer: P.Output) -> None:
    """Question: {{question}} Answer: {{answer}}"""
