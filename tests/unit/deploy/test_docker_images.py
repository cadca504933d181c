"""The Dockerfiles, what they are fed with, and the probe that says whether a container is ready."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support import compose

PROJECT: dict[str, Any] = tomllib.loads((compose.ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "frontend": ("gateway", "cli"),
    "manager": ("manager",),
    "engine-cpu": ("engine-cpu",),
}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

every_image = pytest.mark.parametrize("dockerfile", compose.DOCKERFILES, ids=lambda path: path.stem)


def loaded(path: str) -> ModuleType:
    """A script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, compose.ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins() -> dict[str, str]:
    lines = (compose.ROOT / "docker" / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_there_is_an_image_for_every_service() -> None:
    assert {path.stem for path in compose.DOCKERFILES} == set(EXTRAS)


@every_image
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    program = compose.tool("hadolint")
    if program is None:
        pytest.skip("there is no hadolint here")
    done = subprocess.run([program, str(dockerfile)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@every_image
def test_a_base_can_be_swapped_and_is_pinned(dockerfile: Path) -> None:
    every = compose.instructions(dockerfile)
    assert every[0][0] == "ARG"
    assert re.fullmatch(r"BASE=[a-z]+:\d+\.\d+\.\d+-[a-z-]+", every[0][1])
    stages = [rest.partition(" ")[0] for name, rest in every if name == "FROM"]
    assert stages == ["${BASE}", "${BASE}"]


@every_image
def test_an_image_runs_as_nobody_in_particular(dockerfile: Path) -> None:
    users = [rest for name, rest in compose.image(dockerfile) if name == "USER"]
    assert users == ["10001:10001"]


@every_image
def test_an_image_says_what_it_is(dockerfile: Path) -> None:
    labels = dict(compose.image(dockerfile))["LABEL"]
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert ("ARG", f"VERSION={PROJECT['version']}") in compose.image(dockerfile)


@every_image
def test_an_image_starts_a_command_of_ours_without_a_shell(dockerfile: Path) -> None:
    command = json.loads(dict(compose.image(dockerfile))["ENTRYPOINT"])
    assert len(command) == 1
    assert command[0] in PROJECT["scripts"]


def test_the_engine_compiles_no_kernel_where_there_is_no_compiler() -> None:
    dockerfile = compose.ROOT / "docker" / "engine-cpu.Dockerfile"
    assert "g++" not in dockerfile.read_text()
    assert compose.image_environment(dockerfile)["TORCHDYNAMO_DISABLE"] == "1"


@every_image
def test_an_image_is_asked_whether_it_is_ready_where_it_listens(dockerfile: Path) -> None:
    check = dict(compose.image(dockerfile))["HEALTHCHECK"].partition("CMD ")[2]
    program, script, _, address = json.loads(check)
    assert (program, script) == ("python", "/opt/parrot/probe.py")
    port = dict(compose.image(dockerfile))["EXPOSE"]
    assert re.search(rf":{port}\b", address)
    assert port in " ".join(compose.image_environment(dockerfile).values())


@every_image
def test_a_build_is_sent_what_it_copies(dockerfile: Path) -> None:
    first, *others = [
        line
        for line in (compose.ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    sent = [line.removeprefix("!") for line in others if line.startswith("!")]
    for name, rest in compose.instructions(dockerfile):
        if name != "COPY" or rest.startswith("--from"):
            continue
        for source in rest.split()[:-1]:
            assert (compose.ROOT / source).exists(), source
            assert any(source == one or source.startswith(f"{one}/") for one in sent), source


@pytest.mark.parametrize(("name", "extras"), EXTRAS.items())
def test_every_requirement_of_an_image_is_pinned_within_its_bounds(
    name: str, extras: tuple[str, ...]
) -> None:
    dockerfile = (compose.ROOT / "docker" / f"{name}.Dockerfile").read_text()
    assert f'".[{",".join(extras)}]"' in dockerfile or name == "engine-cpu"
    pinned = pins()
    for requirement in required(extras):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version, prereleases=True), requirement


def required(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """What some extras of ours need, other extras of ours followed."""
    for line in (*PROJECT["dependencies"], *(line for extra in extras for line in optional(extra))):
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            yield from required(tuple(requirement.extras))
        else:
            yield requirement


def optional(extra: str) -> list[str]:
    lines: list[str] = PROJECT["optional-dependencies"][extra]
    return lines


def test_the_engine_s_image_holds_the_torch_and_the_vllm_of_the_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(compose.ROOT / "tools"))
    installing = loaded("docker/install_engine.py")
    setup = installing.setup_env
    commands: list[list[str]] = []

    def run(_: str, command: list[str]) -> tuple[int, str]:
        commands.append(command)
        return 0, ""

    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "LOG", tmp_path / "log")
    monkeypatch.setattr(setup, "make_venv", lambda: None)
    monkeypatch.setattr(setup, "vllm_requirements", lambda: ["one>=1"])
    monkeypatch.setattr(setup, "run", run)
    installing.main()
    flat = [word for command in commands for word in command]
    assert setup.TORCH in flat
    alone = [command[-1] for command in commands if command[-2] == "--no-deps"]
    assert alone == [setup.VLLM, installing.MODEL]
    # Together they are what the extra of the laptop brings.
    others = {f"{compose.ROOT}[engine]", "gguf", installing.MODEL}
    assert others <= set(flat)
    extra = {Requirement(line).name for line in optional("engine-cpu")}
    assert extra == {PROJECT["name"], "gguf", installing.MODEL}
    assert str(compose.ROOT / "docker" / "constraints.txt") in flat
    assert (tmp_path / "vllm-requirements.txt").read_text() == "one>=1\n"
    for wanted in (setup.TORCH, setup.VLLM):
        name, version = wanted.split("==")
        assert pins()[name] == version


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The URL of a server that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"as it is")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/readyz"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(status: int) -> Iterator[str]:
    """The address of a gRPC server whose health is one status."""
    with ThreadPoolExecutor(1) as workers:
        server = grpc.server(workers)
        servicer = health.HealthServicer()
        servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def nobody() -> Iterator[str]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_the_probe_is_content_with_who_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that is set for the world outside is none for the container itself.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    probe = loaded("docker/probe.py")
    with answering(200) as url, serving(SERVING) as address:
        assert probe.main(["http", url]) is None
        assert probe.main(["grpc", address]) is None


def test_the_probe_says_why_who_is_not_ready() -> None:
    probe = loaded("docker/probe.py")
    with answering(503) as url, serving(NOT_SERVING) as address, nobody() as nowhere:
        assert "503 as it is" in probe.main(["http", url])
        assert "NOT_SERVING" in probe.main(["grpc", address])
        assert "refused" in probe.main(["http", f"http://{nowhere}/readyz"])
        assert "UNAVAILABLE" in probe.main(["grpc", nowhere])


@pytest.mark.parametrize("arguments", [[], ["http"], ["http", "file:///etc/passwd"], ["tcp", "here:1"]])
def test_the_probe_takes_nothing_else(arguments: list[str]) -> None:
    assert loaded("docker/probe.py").main(arguments).startswith("usage: ")
