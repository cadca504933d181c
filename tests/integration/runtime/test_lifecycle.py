"""A service's process: stops when told, says why it can't go on, and waits for no collector."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import asyncio, sys
from parrot_runtime import errors, telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.settings import ServiceSettings

async def main(stop: Stop) -> None:
    {body}

run_service("test", ServiceSettings.load(sys.argv[1:]), main)
"""
SERVE = """stop.begun()
    print("ready", flush=True)
    await stop.wait()
    print("undone", flush=True)"""


def start(body: str, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_signal_stops_a_service_in_order() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start(SERVE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "undone\n")


def test_a_second_signal_ends_it_at_once() -> None:
    process = start('stop.begun()\n    print("ready", flush=True)\n    await asyncio.sleep(1000)')
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert "second signal" in err


def test_a_stop_ends_a_start_that_waits_for_a_peer() -> None:
    process = start('print("starting", flush=True)\n    await asyncio.sleep(1000)')
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err


def test_a_fault_ends_it_with_one_line_that_says_why() -> None:
    process = start('raise ExceptionGroup("g", [Fault(errors.UNAVAILABLE, "no NATS at x")])')
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "parrot-test: no NATS at x\n" in err
    assert "Traceback" not in err


def test_a_wrong_setting_is_named_with_flag_and_variable() -> None:
    process = start("pass", "--log-level", "loud")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "--log-level (PARROT_LOG_LEVEL)" in err


def test_a_dead_collector_holds_nothing_up() -> None:
    spans = """for i in range(20000):
        with telemetry.tracer().start_as_current_span("s"):
            pass
    print("done", flush=True)"""
    process = start(spans, "--otlp-endpoint", "http://127.0.0.1:1")
    assert process.stdout is not None
    process.stdout.readline()
    since = time.monotonic()
    process.communicate(timeout=20)
    assert process.returncode == 0
    # Generous: without a bound of its own, the exporter would take minutes.
    assert time.monotonic() - since < 15


STARTING = """
import signal
from parrot_runtime.starting import stoppable
stoppable()
print("importing", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.skipif(
    not shutil.which("unshare") or os.geteuid() != 0, reason="needs root, and `unshare` of util-linux"
)
def test_the_first_process_of_a_container_can_be_stopped_while_it_imports() -> None:
    unshare = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c"]
    with subprocess.Popen([*unshare, STARTING], stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        try:
            assert outside.stdout.readline() == "importing\n"
            (first,) = psutil.Process(outside.pid).children()
            first.send_signal(signal.SIGTERM)
            assert outside.wait(20) == 0
        finally:
            outside.kill()


@pytest.mark.parametrize("service", ["gateway", "manager", "engine"])
def test_a_service_can_be_stopped_before_anything_dear_is_imported(service: str) -> None:
    program = f"""
import signal, sys, types
from parrot_{service}.__main__ import main
print(sorted({{"grpc", "nats", "pydantic", "google.protobuf"}} & set(sys.modules)))
stub = types.ModuleType("stub")
stub.main = lambda: print(signal.getsignal(signal.SIGTERM).__module__)
sys.modules["parrot_{service}.main"] = stub
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "parrot_runtime.starting"]
