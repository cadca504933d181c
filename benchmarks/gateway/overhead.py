"""What Parrot adds: to a call at its gateway, and to a completion's first text against vLLM's own server.

At the gateway: one call is submitted over HTTP, and another over gRPC to the manager behind it, in turns; the
difference of a pair is the gateway's. To the first text: the same streamed completion is asked of vLLM's own
server and of Parrot with its vLLM engine, in turns, each with the same model and nobody else about (with
`--quick` it is one scripted server, and Parrot before it with its `openai` engine: nothing is computed).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.gateway.sse import events, opened
from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.manager.processes import Service, ask, flag, started
from benchmarks.stack import Stack, free_port, get, running
from parrot_engine.backends.vllm.arguments import environment
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.models import SMOLLM2, find_model
from parrot_engine.settings import EngineSettings
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import rpc

TENANT = "default"
PROMPT = "The harbour master wrote down every ship that came in before the storm, and then"
TOKENS = 8
STARTED_WITHIN_S = 240.0
SERVER = "vllm.entrypoints.openai.api_server"
SCRIPT = """
import asyncio, sys
from tools.scripted_upstream import ScriptedUpstream
async def main():
    script = [{"text": "w{n:03d} ", "repeat": 8}]
    async with ScriptedUpstream({"default": script}, model=sys.argv[2], port=int(sys.argv[1])):
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def submit_http(url: str, session_id: str) -> float:
    """One call, accepted over HTTP, in ms."""
    hole = {"name": "text", "in_out": "out", "sampling": {"max_tokens": 1}}
    call = {"name": "say", "prompt": PROMPT + " {{text}}", "placeholders": [hole]}
    began = time.perf_counter()
    await request(url, "POST", f"/v1/sessions/{session_id}/calls", {"calls": [call]})
    return (time.perf_counter() - began) * 1e3


async def submit_grpc(channel: Any, session_id: str, number: int) -> float:
    """The same over gRPC."""
    output = common_pb2.OutputHole(name="text", variable_id=f"direct-{number}")
    output.sampling.max_tokens = 1
    segments = [common_pb2.Segment(text=PROMPT), common_pb2.Segment(output=output)]
    new = pb.SubmitCallsRequest(
        tenant=TENANT,
        session_id=session_id,
        calls=[pb.NewCall(name="say", segments=segments)],
        idempotency_key=f"k-{number}",
    )
    began = time.perf_counter()
    await ask(channel, "SubmitCalls", new)
    return (time.perf_counter() - began) * 1e3


async def at_the_gateway(stack: Stack, pairs: int) -> list[dict[str, float]]:
    """Pairs of a call over HTTP and one over gRPC."""
    async with rpc.channel(flag(stack, "--manager-address").split(",")[0]) as channel:
        session_id = (await request(stack.url, "POST", "/v1/sessions", {}))["id"]
        found = []
        for number in range(pairs + 5):
            grpc_ms = await submit_grpc(channel, session_id, number)
            http_ms = await submit_http(stack.url, session_id)
            found.append({"http_ms": http_ms, "grpc_ms": grpc_ms, "gateway_ms": http_ms - grpc_ms})
        await request(stack.url, "DELETE", f"/v1/sessions/{session_id}")
    return found[5:]


async def completion(url: str, model: str, number: int) -> dict[str, float]:
    """One streamed completion: to the head, the first text and the end, in ms."""
    body = {
        "model": model,
        "prompt": f"{number}. {PROMPT}",
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    began = time.monotonic()
    first_ms = head_ms = 0.0
    async with opened(url, "/v1/completions", body=body) as reader:
        head_ms = (time.monotonic() - began) * 1e3
        async for event in events(reader):
            if event.data is None:
                break
            if not first_ms and event.data["choices"] and event.data["choices"][0]["text"]:
                first_ms = (event.at - began) * 1e3
    return {"head_ms": head_ms, "first_ms": first_ms, "whole_ms": (time.monotonic() - began) * 1e3}


async def to_the_first_text(direct: str, ours: str, model: str, pairs: int) -> list[dict[str, Any]]:
    """Completions in turns, who begins changing; the first few are left out."""
    found = []
    for number in range(pairs + 3):
        order = [("direct", direct), ("parrot", ours)][:: 1 if number % 2 else -1]
        pair = {name: await completion(url, model, number) for name, url in order}
        found.append(
            {
                **{f"{name}_{key}": value for name, each in pair.items() for key, value in each.items()},
                "extra_ms": pair["parrot"]["first_ms"] - pair["direct"]["first_ms"],
            }
        )
    return found[3:]


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Returns once a server lists its models."""
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if get(f"{url}/v1/models")["data"]:
                return
        except OSError:
            pass
        time.sleep(0.1)  # between two looks: a server that is not there yet tells nobody
    raise RuntimeError(f"no server came up at {url}")


@contextmanager
def server(*command: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Another server, with `PORT` in its command replaced by a free port; its URL."""
    port = free_port()
    words = [word.replace("PORT", str(port)) for word in command]
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def scripted(stack: Stack) -> Iterator[tuple[str, str, str]]:
    """A scripted server, and Parrot before it: their URLs, and the model's name."""
    with server("-c", SCRIPT, "PORT", "scripted") as url:
        where = [
            "--manager-address",
            flag(stack, "--manager-address"),
            "--nats-url",
            flag(stack, "--nats-url"),
        ]
        upstream = ["--backend", "openai", "--model", "scripted", "--openai-base-url", f"{url}/v1"]
        with started(Service("parrot_engine", ["--engine-id", "e-scripted", *upstream, *where])):
            _wait_for_model(stack.url, "scripted")
            yield url, stack.url, "scripted"


@contextmanager
def real() -> Iterator[tuple[str, str, str]]:
    """vLLM's own server, and Parrot with its vLLM engine, on the same model."""
    folder = find_model(SMOLLM2, EngineSettings.load([]).cache_dir, lambda text: None)
    options = VllmOptions(model=str(folder.path), cache_dir=folder.path)
    with running("--backend", "vllm") as stack:
        model = get(f"{stack.url}/v1/models")["data"][0]["id"]  # type: ignore[index]
        flags = (
            *("-m", SERVER, "--host", "127.0.0.1", "--port", "PORT", "--model", str(folder.path)),
            *("--served-model-name", model, "--dtype", "bfloat16", "--max-model-len", "2048"),
            *("--kv-cache-memory-bytes", str(512 << 20), "--max-num-seqs", "16", "--enforce-eager"),
            *("--worker-cls", "parrot_engine.backends.vllm.cpu_worker.MendedCPUWorker"),
        )
        with server(*flags, env=environment(options)) as url:
            yield url, stack.url, model


def _wait_for_model(url: str, model: str) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while model not in [one["id"] for one in get(f"{url}/v1/models")["data"]]:  # type: ignore[attr-defined]
        if time.monotonic() > deadline:
            raise RuntimeError("the engine did not attach")
        time.sleep(0.05)  # between two looks


def measure(report: Report, *, quick: bool) -> None:
    """Both parts."""
    with ExitStack() as stack:
        ours = stack.enter_context(running("--backend", "sim"))
        report.samples += asyncio.run(at_the_gateway(ours, 60 if quick else 300))
        if quick:
            systems = stack.enter_context(scripted(ours))
            report.samples += asyncio.run(to_the_first_text(*systems, 60))
    if not quick:
        with real() as systems:
            report.samples += asyncio.run(to_the_first_text(*systems, 80))


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    report = Report("gateway_overhead", {"prompt": PROMPT, "tokens": TOKENS, "quick": arguments.quick})
    measure(report, quick=arguments.quick)
    columns = [
        *("http_ms", "grpc_ms", "gateway_ms", "direct_head_ms", "parrot_head_ms"),
        *("direct_first_ms", "parrot_first_ms", "extra_ms", "direct_whole_ms", "parrot_whole_ms"),
    ]
    found = {name: [s[name] for s in report.samples if name in s] for name in columns}
    print_table(
        ["ms", "min", "p50", "p99", "max"],
        [[name, *(f"{value:.1f}" for value in spread(values).values())] for name, values in found.items()],
    )
    report.summary = {
        "overhead_ms_p50": statistics.median(found["gateway_ms"]),
        "overhead_ms_p99": spread(found["gateway_ms"])["p99"],
        "first_text_extra_ms_p50": statistics.median(found["extra_ms"]),
        "first_text_extra_ms_p99": spread(found["extra_ms"])["p99"],
    }
    report.show(arguments.json)


if __name__ == "__main__":
    main()
