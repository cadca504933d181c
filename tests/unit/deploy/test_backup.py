"""What the guide says of backups: a dump of a running system brings its sessions back, elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.support.postgres import PostgresServer, temporary_postgres
from tests.support.up import data_folder, running
from tests.support.waiting import until
from tests.unit.deploy.manifests import ROOT

from parrot_cli.postgres_server import locate

SCRIPTS = ROOT / "deploy" / "postgres"
ENDED = {"done", "failed", "cancelled"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server with a database for what is backed up, and others to restore to."""
    with temporary_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, str]]:
    """An environment with Postgres's own commands on the PATH."""
    with data_folder() as folder:
        found = locate(folder / "data")
        yield {**os.environ, "PATH": f"{found.bin}:{os.environ['PATH']}"}


@pytest.mark.timeout(300)
def test_sessions_are_there_after_a_restore_and_what_ran_goes_on(
    postgres: PostgresServer, tools: dict[str, str], tmp_path: Path
) -> None:
    before, after, dump = postgres.new_database(), postgres.new_database(), tmp_path / "parrot.dump"
    with up(tmp_path / "before", before) as url:
        ended = submitted(url, 8)
        title = value(url, ended)
        going = submitted(url, 600)
        until(lambda: states(url, going)[0] == "running")
        run(tools, "backup.sh", before, dump)
    run(tools, "restore.sh", after, dump)
    # With a bus that has none of the old one's text.
    with up(tmp_path / "after", after) as url:
        assert value(url, ended) == title
        until(lambda: set(states(url, going)) <= ENDED, within_s=90)
        assert states(url, going) == ["done", "done"]
        assert value(url, submitted(url, 8))["state"] == "ready"


def test_a_restore_leaves_a_database_alone_that_holds_something(
    postgres: PostgresServer, tools: dict[str, str], tmp_path: Path
) -> None:
    url, dump = postgres.new_database(), tmp_path / "empty.dump"
    run(tools, "backup.sh", url, dump)
    psql = ["psql", "-q", "-c", "create table mine (id int)", url]
    subprocess.run(psql, check=True, env=tools)
    done = attempt(tools, "restore.sh", url, dump)
    assert done.returncode == 1
    assert "the database has 1 tables; restore into an empty one" in done.stderr


def test_a_backup_that_fails_leaves_no_file_and_a_second_one_no_other_behind(
    postgres: PostgresServer, tools: dict[str, str], tmp_path: Path
) -> None:
    dump = tmp_path / "parrot.dump"
    assert attempt(tools, "backup.sh", postgres.url("nobody_has_it"), dump).returncode != 0
    assert not dump.exists()
    run(tools, "backup.sh", postgres.new_database(), dump)
    held = dump.read_bytes()
    assert "is there already" in attempt(tools, "backup.sh", postgres.new_database(), dump).stderr
    assert dump.read_bytes() == held


@contextmanager
def up(folder: Path, postgres_url: str) -> Iterator[str]:
    """The system on a database; its end is as sudden as a machine's."""
    folder.mkdir()
    with running(folder, "--backend", "sim", "--postgres", postgres_url) as system:
        system.wait_up(within_s=120)
        yield system.url
        for process in [psutil.Process(system.process.pid), *system.tree()]:
            process.kill()


def submitted(url: str, tokens: int) -> str:
    """The session of an application of two calls, the first of which makes so many tokens."""
    session = str(httpx.post(f"{url}/v1/sessions").raise_for_status().json()["id"])
    sampling = {"max_tokens": tokens, "ignore_eos": True}
    calls = [
        {
            "name": "describe",
            "prompt": "A fact: {{text}}",
            "placeholders": [
                {"name": "text", "in_out": "out", "semantic_var_id": "fact", "sampling": sampling}
            ],
        },
        {
            "name": "entitle",
            "prompt": "A title of {{text}}: {{title}}",
            "placeholders": [
                {"name": "text", "in_out": "in", "semantic_var_id": "fact"},
                {"name": "title", "in_out": "out", "semantic_var_id": "title", "sampling": {"max_tokens": 8}},
            ],
        },
    ]
    httpx.post(f"{url}/v1/sessions/{session}/calls", json={"calls": calls}).raise_for_status()
    return session


def value(url: str, session: str) -> dict[str, Any]:
    """The title of an application, once it is there."""
    answer = httpx.get(f"{url}/v1/sessions/{session}/variables/title", timeout=30).raise_for_status()
    return dict(answer.json())


def states(url: str, session: str) -> list[str]:
    """The states of an application's calls."""
    found = httpx.get(f"{url}/v1/sessions/{session}").raise_for_status().json()
    return [call["state"] for call in found["calls"]]


def run(tools: dict[str, str], script: str, url: str, dump: Path) -> None:
    """Runs a script of the guide's, which must succeed."""
    done = attempt(tools, script, url, dump)
    assert done.returncode == 0, done.stderr


def attempt(tools: dict[str, str], script: str, url: str, dump: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script of the guide's."""
    command = [str(SCRIPTS / script), url, str(dump)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=tools)
