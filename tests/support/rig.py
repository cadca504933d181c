"""A whole system whose engines say what a test scripts: two managers, two gateways, one bus, one database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from parrot.sse import Event, Parser
from parrot_cli.child import tethered
from parrot_engine.text.chat import CHATML
from tests.support.attached import Engines
from tests.support.nats import free_port
from tests.support.sim_upstream import byte_tokenizer_folder
from tests.support.up import Up, data_folder, running
from tests.support.waiting import until

BY_TEXT: Final = "by-text"
"""The model that is sent its prompts as text; a script is chosen by its name in the prompt."""
BY_IDS: Final = "by-ids"
"""The one that is sent token ids; it follows the script `default`."""
WINDOW: Final = 30_000_000
HEARTBEAT_S: Final = 0.3
"""Of the gateways."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A scripted server behind an engine, steered over HTTP."""

    url: str

    def script(self, name: str, *actions: dict[str, Any]) -> None:
        """What is said where a prompt has `script:NAME` in it."""
        httpx.put(f"{self.url}/scripts/{name}", json=list(actions)).raise_for_status()

    def prompts(self) -> list[Any]:
        """What was asked so far."""
        return [request["prompt"] for request in httpx.get(f"{self.url}/state").json()["requests"]]


@dataclass(frozen=True, slots=True)
class Rig:
    """The system, and the API of its first gateway.

    Attributes:
        urls: of the two gateways.
        upstreams: by the model they stand for.
    """

    up: Up
    urls: tuple[str, str]
    upstreams: dict[str, Upstream]
    http: httpx.Client

    def open(self, **fields: Any) -> str:
        """A new session's id."""
        answer = self.http.post("/v1/sessions", json=fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, session: str, *calls: dict[str, Any], **more: Any) -> httpx.Response:
        """What a batch is answered with."""
        return self.http.post(f"/v1/sessions/{session}/calls", json={"calls": list(calls), **more})

    def set(self, session: str, variable: str, value: str) -> httpx.Response:
        """What a value is answered with."""
        # Escaped: half a character has no other form.
        body = json.dumps({"value": value}).encode()
        path = f"/v1/sessions/{session}/variables/{variable}"
        return self.http.put(path, content=body, headers={"Content-Type": "application/json"})

    def read(self, session: str, variable: str, wait_s: float = 30) -> dict[str, Any]:
        """A variable at its end."""
        path = f"/v1/sessions/{session}/variables/{variable}"
        found: dict[str, Any] = self.http.get(path, params={"wait_s": wait_s}).json()
        return found

    def graph(self, session: str) -> dict[str, Any]:
        """The graph as it is."""
        found: dict[str, Any] = self.http.get(f"/v1/sessions/{session}").json()
        return found

    def stream(
        self, session: str, variable: str, last_event_id: str = "", gateway: int = 0
    ) -> Iterator[Event]:
        """A variable's events, to the end of the connection."""
        with self.streaming(session, variable, last_event_id, gateway) as (answer, events):
            assert answer.status_code == 200, answer.read()
            yield from events

    @contextmanager
    def streaming(
        self, session: str, variable: str, last_event_id: str = "", gateway: int = 0
    ) -> Iterator[tuple[httpx.Response, Iterator[Event]]]:
        """The answer to whoever asks for a stream, and its events."""
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        path = f"{self.urls[gateway]}/v1/sessions/{session}/variables/{variable}/stream"
        with httpx.stream("GET", path, headers=headers, timeout=60) as answer:
            yield answer, _events(answer)

    def logs(self) -> str:
        """Whatever any process logged."""
        files = [*(self.up.folder / "logs").glob("*.log"), *self.up.folder.glob("*.log")]
        return "\n".join(file.read_text(errors="replace") for file in files)


def call(
    script: str, *inputs: str, output: str, model: str = BY_TEXT, **output_fields: Any
) -> dict[str, Any]:
    """A call that follows a script, reads variables, and makes one."""
    holes = "".join(f" {{{{{name}}}}}" for name in inputs)
    reads = [{"name": name, "in_out": "in", "semantic_var_id": name} for name in inputs]
    makes = {"name": output, "in_out": "out", "semantic_var_id": output, **output_fields}
    prompt = f"script:{script}{holes} {{{{{output}}}}}"
    return {"name": script, "model": model, "prompt": prompt, "placeholders": [*reads, makes]}


def text_of(events: Sequence[Event]) -> str:
    """What a stream's deltas say."""
    return "".join(json.loads(event.data)["text"] for event in events if event.event == "delta")


@contextmanager
def running_rig() -> Iterator[Rig]:
    """The system for the length of the `with`."""
    # A call that has failed on the only engine of its model does not wait long for another.
    env = {"PARROT_ENGINE_WAIT_S": "3", "PARROT_HEARTBEAT_S": str(HEARTBEAT_S)}
    flags = ("--backend", "sim", "--engines", "0", "--managers", "2")
    with data_folder() as folder, running(folder, *flags, env=env) as up, ExitStack() as stack:
        ready = up.wait_up()
        nats_url, managers = str(ready["nats_url"]), str(ready["manager_address"])
        second = stack.enter_context(_gateway(nats_url, managers, folder))
        upstreams = {model: stack.enter_context(_upstream(model, folder)) for model in (BY_TEXT, BY_IDS)}
        engines = Engines(up, ready, folder, ["--backend", "openai"])
        stack.callback(engines.close)
        for model, upstream in upstreams.items():
            engines.start(model, *_engine_flags(model, upstream, folder))
        engines.wait_attached(*upstreams)
        http = stack.enter_context(httpx.Client(base_url=up.url, timeout=60))
        yield Rig(up, (up.url, second), upstreams, http)


def _engine_flags(model: str, upstream: Upstream, folder: Path) -> list[str]:
    flags = ["--model", model, "--openai-base-url", f"{upstream.url}/v1", "--openai-timeout-s", "2"]
    if model == BY_IDS:
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir()
        (tokenizer / "chat_template.jinja").write_text(CHATML)
        flags += ["--openai-tokenizer", str(byte_tokenizer_folder(tokenizer))]
    return flags


@contextmanager
def _gateway(nats_url: str, managers: str, folder: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["--port", str(port), "--manager-address", managers, "--nats-url", nats_url]
    flags += ["--heartbeat-s", str(HEARTBEAT_S)]
    with _process([sys.executable, "-m", "parrot_gateway", *flags], folder / "gateway-2.log"):
        until(lambda: _is_ready(f"{url}/readyz"), within_s=60)
        yield url


@contextmanager
def _upstream(model: str, folder: Path) -> Iterator[Upstream]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tool = Path(__file__).parents[2] / "tools" / "scripted_upstream.py"
    flags = ("--port", str(port), "--model", model, "--owner", "vllm", "--window-tokens", str(WINDOW))
    with _process([sys.executable, str(tool), *flags], folder / f"upstream-{model}.txt"):
        until(lambda: _is_ready(f"{url}/state"), within_s=60)
        yield Upstream(url)


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("ab") as stream:
        process = subprocess.Popen(tethered(command, signal.SIGTERM), stdout=stream, stderr=stream)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False


def _events(answer: httpx.Response) -> Iterator[Event]:
    parser = Parser()
    for chunk in answer.iter_bytes():
        yield from parser.feed(chunk)
