"""The Dockerfiles, what they are fed with, and the probe that says whether a container is ready."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
from tests.support import compose

PROJECT: dict[str, Any] = tomllib.loads((compose.ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "frontend": ("gateway", "cli"),
    "manager": ("manager",),
    "engine-cpu": ("engine-vllm",),
    "engine-gpu": ("engine-vllm",),
    "engine-sandbox": ("sandbox",),
}
BASE = re.compile(r"BASE=[a-z]+(/[a-z]+)?:\d+\.\d+\.\d+-[a-z0-9.-]+(@sha256:[0-9a-f]{64})?")

every_image = pytest.mark.parametrize("dockerfile", compose.DOCKERFILES, ids=lambda path: path.stem)


def loaded(path: str) -> ModuleType:
    """A script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, compose.ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert BASE.fullmatch(every[0][1])
    known = {"${BASE}"}
    for name, rest in every:
        if name == "FROM":
            source, _, stage = rest.partition(" AS ")
            assert source in known
            known.add(stage)


def test_images_of_one_kind_share_their_base() -> None:
    bases = {path.stem: compose.instructions(path)[0][1] for path in compose.DOCKERFILES}
    assert len({base for name, base in bases.items() if name != "engine-gpu"}) == 1
    assert "@sha256:" in bases["manager"]


@every_image
def test_an_image_runs_as_nobody_in_particular(dockerfile: Path) -> None:
    users = [rest for name, rest in compose.image(dockerfile) if name == "USER"]
    assert users == ["10001:10001"]


@every_image
def test_an_image_says_what_it_is_and_on_what_it_stands(dockerfile: Path) -> None:
    labels = dict(word.split("=", 1) for word in shlex.split(dict(compose.image(dockerfile))["LABEL"]))
    start = "org.opencontainers.image."
    names = {"title", "description", "licenses", "version", "revision", "base.name"}
    assert {name.removeprefix(start) for name in labels} == names
    assert labels[f"{start}title"] == f"parrot/{dockerfile.stem}"
    arguments = [rest for name, rest in compose.image(dockerfile) if name == "ARG"]
    assert arguments == ["BASE", f"VERSION={PROJECT['version']}", "REVISION=unknown"]


@every_image
def test_an_image_starts_a_command_of_ours_without_a_shell(dockerfile: Path) -> None:
    command = json.loads(dict(compose.image(dockerfile))["ENTRYPOINT"])
    assert len(command) == 1
    assert command[0] in PROJECT["scripts"]


@every_image
def test_what_changes_often_is_a_small_layer_above_what_seldom_does(dockerfile: Path) -> None:
    copied = [rest for name, rest in compose.image(dockerfile) if name == "COPY"]
    stages = [rest.partition(" ")[0] for rest in copied if rest.startswith("--from")]
    assert stages[:2] == ["--from=needs", "--from=service"]
    taken = compose.stage(dockerfile, "needs")
    sources = [word for name, rest in taken if name == "COPY" for word in rest.split()[:-1]]
    assert {"services", "proto", "README.md"}.isdisjoint(sources)


def test_the_engine_compiles_no_kernel_where_there_is_no_compiler() -> None:
    dockerfile = compose.ROOT / "docker" / "engine-cpu.Dockerfile"
    assert "g++" not in str(compose.image(dockerfile))
    assert compose.image_environment(dockerfile)["TORCHDYNAMO_DISABLE"] == "1"


@pytest.mark.parametrize("name", ["engine-cpu", "engine-gpu"])
def test_an_engine_without_its_compiled_kernels_is_no_image(name: str) -> None:
    steps = compose.stage(compose.ROOT / "docker" / f"{name}.Dockerfile", "service")
    (command,) = [rest for step, rest in steps if step == "RUN" and "install.py service" in rest]
    assert "PARROT_WHEEL_KERNELS=require" in command.split()
    assert any("g++" in rest.split() for rest in built_with(name))


def built_with(name: str) -> list[str]:
    return [
        rest
        for step, rest in compose.instructions(compose.ROOT / "docker" / f"{name}.Dockerfile")
        if step == "RUN"
    ]


def test_the_engine_for_gpus_keeps_what_it_compiles_where_models_are() -> None:
    dockerfile = compose.ROOT / "docker" / "engine-gpu.Dockerfile"
    environment = compose.image_environment(dockerfile)
    assert "g++" in dockerfile.read_text()
    assert "TORCHDYNAMO_DISABLE" not in environment
    assert environment["HOME"] == environment["PARROT_CACHE_DIR"]
    assert "compute" in environment["NVIDIA_DRIVER_CAPABILITIES"].split(",")


@every_image
def test_an_image_is_asked_whether_it_is_ready_where_it_says_so(dockerfile: Path) -> None:
    check = dict(compose.image(dockerfile))["HEALTHCHECK"].partition("CMD ")[2]
    program, script, url = json.loads(check)
    assert (program, script) == ("python", "/opt/parrot/probe.py")
    _, _, port = compose.image_environment(dockerfile)["PARROT_METRICS_ADDRESS"].rpartition(":")
    assert url == f"http://127.0.0.1:{port}/readyz"
    assert port in dict(compose.image(dockerfile))["EXPOSE"].split()


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
def nobody() -> Iterator[str]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_the_probe_is_content_with_who_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that is set for the world outside is none for the container itself.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(200) as url:
        assert loaded("docker/probe.py").main([url]) is None


def test_the_probe_says_why_who_is_not_ready() -> None:
    probe = loaded("docker/probe.py")
    with answering(503) as url, nobody() as nowhere:
        assert "503 as it is" in probe.main([url])
        assert "refused" in probe.main([f"http://{nowhere}/readyz"])


@pytest.mark.parametrize("arguments", [[], ["file:///etc/passwd"], ["http://one", "http://two"]])
def test_the_probe_takes_nothing_else(arguments: list[str]) -> None:
    assert loaded("docker/probe.py").main(arguments).startswith("usage: ")
