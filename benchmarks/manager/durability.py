"""What persistence costs an application: the manager on Postgres against one that keeps all in memory.

Two systems side by side on one bus, alike but for the manager's store, each with a simulated engine of its
own. Chains of calls run on one and then the other, in turns; a step is one call of a chain. The tax is the
chains' time with Postgres over that without, less one; outside of a step is from the end of the call before
to its own end, as the manager notes them, less what the engine says it took.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.manager.processes import STARTED_WITHIN_S, Service, flag, manager, started
from benchmarks.stack import Stack, free_port, get, running

CALLS = 8
TOKENS = 48
PHASES = ("queue_ms", "prefill_ms", "decode_ms")


def batch() -> list[dict[str, Any]]:
    """A chain: each call reads the output of the one before."""
    return [
        {
            "name": "continue",
            "prompt": "{{before}} And so: {{after}}",
            "placeholders": [
                {"name": "before", "in_out": "in"}
                | ({"semantic_var_id": f"v{i - 1}"} if i else {"value": "It began."}),
                {
                    "name": "after",
                    "in_out": "out",
                    "semantic_var_id": f"v{i}",
                    "sampling": {"max_tokens": TOKENS, "ignore_eos": True},
                },
            ],
        }
        for i in range(CALLS)
    ]


async def chain(url: str) -> dict[str, Any]:
    """One chain: its time from the submission to the last value, and its steps' outside of the engine."""
    session = (await request(url, "POST", "/v1/sessions", {}))["id"]
    began = time.perf_counter()
    await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": batch()})
    last = await request(url, "GET", f"/v1/sessions/{session}/variables/v{CALLS - 1}?wait_s=120")
    elapsed_ms = (time.perf_counter() - began) * 1e3
    assert last["state"] == "ready", last
    calls = (await request(url, "GET", f"/v1/sessions/{session}"))["calls"]
    await request(url, "DELETE", f"/v1/sessions/{session}")
    steps = [
        now["ended_unix_ms"] - before["ended_unix_ms"] - sum(now["timings"][phase] for phase in PHASES)
        for before, now in pairwise(calls)
    ]
    return {"chain_ms": elapsed_ms, "steps_outside_ms": steps}


@contextmanager
def in_memory(stack: Stack) -> Iterator[str]:
    """The other system, on the same bus; its URL."""
    nats = ["--nats-url", flag(stack, "--nats-url"), "--log-level", "warning"]
    service, address = manager(stack, "m-memory", module="benchmarks.manager.memory_manager")
    port = free_port()
    at = ["--manager-address", address, *nats]
    engine = Service("parrot_engine", ["--engine-id", "e-memory", "--backend", "sim", *at])
    gateway = Service("parrot_gateway", ["--port", str(port), *at])
    with started(service, engine, gateway):
        url = f"http://127.0.0.1:{port}"
        _wait(url)
        yield url


def _wait(url: str) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if get(f"{url}/v1/models")["data"]:
                return
        except OSError:
            pass
        time.sleep(0.05)  # between two looks: a server that is not there yet tells nobody
    raise RuntimeError("the system without a database did not come up")


async def measure(urls: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Chains in turns, who begins changing; the first of each is left out."""
    samples = []
    for number in range(rounds + 1):
        order = list(urls.items())[:: 1 if number % 2 else -1]
        for store, url in order:
            sample = {"store": store, "round": number, **await chain(url)}
            if number:
                samples.append(sample)
    return samples


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    rounds = 10 if arguments.quick else 40
    report = Report("durability", {"rounds": rounds, "calls": CALLS, "tokens": TOKENS})
    with ExitStack() as exits:
        stack = exits.enter_context(running("--backend", "sim"))
        urls = {"postgres": stack.url, "memory": exits.enter_context(in_memory(stack))}
        report.samples = asyncio.run(measure(urls, rounds))
    columns: dict[tuple[str, str], list[float]] = {}
    for store in urls:
        mine = [sample for sample in report.samples if sample["store"] == store]
        columns[store, "chain"] = [sample["chain_ms"] for sample in mine]
        columns[store, "outside of a step"] = [ms for sample in mine for ms in sample["steps_outside_ms"]]
    print_table(
        ["store, time in ms", "min", "p50", "p99", "max"],
        [
            [f"{store}, {name}", *(f"{value:.1f}" for value in spread(values).values())]
            for (store, name), values in columns.items()
        ],
    )
    with_p99, without_p99 = (spread(columns[store, "outside of a step"])["p99"] for store in urls)
    medians = [statistics.median(columns[store, "chain"]) for store in urls]
    report.summary = {"e2e_tax": medians[0] / medians[1] - 1, "p99_extra_ms": with_p99 - without_p99}
    report.show(arguments.json)


if __name__ == "__main__":
    main()
