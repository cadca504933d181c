"""vLLM's own OpenAI-compatible server, as another process."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parrot_engine.backends.vllm.arguments import environment
from parrot_engine.backends.vllm.options import VllmOptions
from tests.support.nats import free_port
from tests.support.waiting import until

STARTED_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A server that answers."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def vllm_server(model: Path, name: str, window_tokens: int, log: Path) -> Iterator[VllmServer]:
    """Serves the model in a folder on CPU in float32; what it says is in `log`."""
    port = free_port()
    options = VllmOptions(model=str(model), cache_dir=model)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"),
        *("--port", str(port), "--model", str(model), "--served-model-name", name),
        *("--dtype", "float32", "--max-model-len", str(window_tokens), "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(512 << 20), "--max-num-seqs", "16", "--enforce-eager"),
        *("--max-num-batched-tokens", "512", "--distributed-executor-backend", "uni"),
        *("--worker-cls", "parrot_engine.backends.vllm.cpu_worker.MendedCPUWorker"),
        "--enable-prompt-tokens-details",
    ]
    env = os.environ | environment(options)
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        until(lambda: _answers(port, process, log), STARTED_WITHIN_S)
        yield VllmServer(f"http://127.0.0.1:{port}/v1", process)
    finally:
        process.kill()
        process.wait()


def _answers(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
