"""`parrot up` starts a whole stack, says what it does, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.nats import free_port
from tests.support.up import Up, data_folder, gone, running
from tests.support.waiting import until

import parrot as P
from parrot_cli import postgres_server

pytestmark = pytest.mark.timeout(120)
SIM = ("--backend", "sim")
COMPONENTS = {"nats", "postgres", "manager", "gateway", "engine e-1", "engine e-2"}


@P.semantic_function(sampling=P.SamplingConfig(max_gen_length=8))
def ask(question: P.Input, answer: P.Output) -> None:
    """Question: {{question}} Answer: {{answer}}"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as path:
        yield path


def refused(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "parrot_cli", "up", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@contextmanager
def old_nats() -> Iterator[str]:
    """What a NATS server of version 2.9.10 says to its clients."""
    info = (
        b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576,"headers":true,"jetstream":true}\r\n'
    )

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.sendall(info)
                while data := peer.recv(4096):
                    if b"PING" in data:
                        peer.sendall(b"PONG\r\n")

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"nats://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if not gone(process)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Up]:
    """A stack for the tests that leave it as it is."""
    with data_folder() as path, running(path, *SIM, "--engines", "2") as up:
        up.wait_up()
        yield up
        assert up.stop() == 0


def test_says_what_it_started_and_serves_calls(stack: Up) -> None:
    announced = next(event for event in stack.events if event["event"] == "up")
    assert announced["url"] == stack.url
    assert announced["models"] == ["sim"]
    assert stack.pids().keys() == COMPONENTS
    assert all((stack.folder / "logs" / f"{name.replace(' ', '-')}.log").exists() for name in COMPONENTS)
    with P.Session(stack.url) as session:
        assert ask("why?").get()
        assert [call.state for call in session.info().calls] == ["done"]


def test_a_second_one_on_the_same_data_is_refused_and_harms_nothing(stack: Up) -> None:
    code, said = refused(*SIM, "--data-dir", str(stack.folder), "--port", str(free_port()))
    assert code == 1
    assert f"process {stack.process.pid}" in said
    assert stack.url in said
    with P.Session(stack.url):
        assert ask("still there?").get()


def test_uses_the_servers_it_is_given(stack: Up, nats_url: str, folder: Path) -> None:
    postgres = postgres_server.locate(stack.folder / "postgres")
    createdb = [str(postgres.bin / "createdb"), "-h", str(postgres.sockets), "-U", "parrot", "another"]
    subprocess.run(createdb, check=True)
    servers = ("--nats", nats_url, "--postgres", postgres.url.replace("/postgres?", "/another?"))
    with running(folder, *SIM, *servers) as up:
        up.wait_up()
        assert up.pids().keys() == {"manager", "gateway", "engine e-1"}
        with P.Session(up.url):
            assert ask("whose server?").get()
        assert up.stop() == 0


def test_stops_in_order_with_nothing_left_and_a_restart_has_the_sessions(folder: Path) -> None:
    with running(folder, *SIM, "--engines", "2") as up:
        up.wait_up()
        session = P.Session(up.url, keep=True)
        with session:
            answer = ask("what stays?")
            text = answer.get()
        processes = up.tree()
        assert up.stop() == 0
        stopped = [event["component"] for event in up.events if event["event"] == "stopped"]
        assert stopped[:2] == ["gateway", "manager"]
        assert set(stopped[2:4]) == {"engine e-1", "engine e-2"}
        assert stopped[4:] == ["postgres", "nats"]
        assert left_of(processes) == []
    with running(folder, *SIM, "--engines", "0") as up:
        up.wait_up()
        kept = httpx.get(f"{up.url}/v1/sessions/{session.id}/variables/{answer.id}").json()
        assert (kept["state"], kept["value"]) == ("ready", text)
        assert up.stop() == 0


@pytest.mark.parametrize("component", ["engine e-1", "postgres"])
def test_a_component_that_dies_is_reported_and_the_rest_is_stopped(folder: Path, component: str) -> None:
    with running(folder, *SIM) as up:
        up.wait_up()
        processes = up.tree()
        os.kill(up.pids()[component], signal.SIGKILL)
        died = up.wait_for("died", component)
        assert died["exit"] == -signal.SIGKILL
        assert f"{component} was killed by SIGKILL" in died["text"]
        assert died["log"] in died["text"]
        assert up.wait_exit() == 1
        assert left_of(processes) == []


def test_nothing_outlives_it_when_it_is_killed_and_its_data_can_be_used_again(folder: Path) -> None:
    with running(folder, *SIM) as up:
        up.wait_up()
        processes = up.tree()
        assert len(processes) >= 5
        up.process.kill()
        up.wait_exit()
    with running(folder, *SIM) as up:
        up.wait_up()
        assert left_of(processes) == []
        everything = [*up.tree(), psutil.Process(up.process.pid)]
        for process in everything:
            process.kill()
        up.wait_exit()
        until(lambda: left_of(everything) == [])
    assert (folder / "postgres" / "postmaster.pid").exists()
    with running(folder, *SIM, "--engines", "0") as up:
        up.wait_up()
        assert up.stop() == 0


def test_can_be_stopped_while_it_starts(folder: Path) -> None:
    with running(folder, *SIM) as up:
        up.wait_for("ready", "nats")
        assert up.stop() == 0


def test_a_port_in_use_is_found_before_anything_starts(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = refused(*SIM, "--data-dir", str(folder), "--port", str(port))
    assert code == 1
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said
    assert list(folder.iterdir()) == []


def test_a_nats_that_is_too_old_is_refused(folder: Path) -> None:
    with old_nats() as url:
        code, said = refused(*SIM, "--data-dir", str(folder), "--port", str(free_port()), "--nats", url)
    assert code == 1
    assert "2.9.10" in said
    assert "2.12 or newer" in said


def test_a_nats_that_is_not_there_is_refused(folder: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    code, said = refused(*SIM, "--data-dir", str(folder), "--port", str(free_port()), "--nats", url)
    assert code == 1
    assert f"no NATS server answers at {url}" in said


def test_a_postgres_that_is_not_there_is_named_and_the_rest_is_stopped(folder: Path) -> None:
    url = f"postgresql://parrot@127.0.0.1:{free_port()}/parrot"
    with running(folder, *SIM, "--postgres", url, env={"PARROT_CONNECT_TIMEOUT_S": "2"}) as up:
        died = up.wait_for("died", "migrations")
        assert up.wait_exit() == 1
        assert any("Postgres" in line for line in died["tail"])
        stopped = [event["component"] for event in up.events if event["event"] == "stopped"]
        assert stopped == ["nats"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--engines", "-1"), "--engines"),
        (("--backend", "magic"), "--backend"),
        (("--port", "70000"), "--port"),
        (("--log-level", "loud"), "--log-level"),
        (("--model", "/no/such/folder"), "--model"),
        (("--dtype", "float7"), "--dtype"),
    ],
)
def test_bad_flags_are_named(folder: Path, flags: tuple[str, ...], named: str) -> None:
    code, said = refused(*flags, "--data-dir", str(folder))
    assert code in {1, 2}
    assert named in said
