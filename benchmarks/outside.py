"""The share of a call's time that is spent outside the engine.

A chain of calls whose lengths are forced, each waiting for the one before, on the real engine (or,
with `--quick`, on a simulated one with steps as long). Outside is what the client waits less what
the engine says it queued, prefilled and decoded: HTTP, the manager, the database, the bus.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request
from benchmarks.stack import running
from benchmarks.streams import environment

INPUT = "The harbour master wrote down every ship that came in before the storm. " * 30
OUTPUT_TOKENS = 32
PHASES = ("queue_ms", "prefill_ms", "decode_ms")


def batch(calls: int) -> list[dict[str, Any]]:
    """A chain: each call has a long constant text and the output of the call before."""
    return [
        {
            "name": "continue",
            "prompt": INPUT + "{{before}} And so: {{after}}",
            "placeholders": [
                {"name": "before", "in_out": "in"}
                | ({"semantic_var_id": f"v{i - 1}"} if i else {"value": "It began."}),
                {
                    "name": "after",
                    "in_out": "out",
                    "semantic_var_id": f"v{i}",
                    "sampling": {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True},
                },
            ],
        }
        for i in range(calls)
    ]


async def chain(url: str, calls: int) -> list[dict[str, float]]:
    """One chain; a sample a call, in ms."""
    session = (await request(url, "POST", "/v1/sessions", {}))["id"]
    started = time.perf_counter()
    await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": batch(calls)})
    last = await request(url, "GET", f"/v1/sessions/{session}/variables/v{calls - 1}?wait_s=300")
    elapsed = (time.perf_counter() - started) * 1e3
    assert last["state"] == "ready", last
    graph = await request(url, "GET", f"/v1/sessions/{session}")
    inside = [
        sum(call["timings"][key] for key in ("queue_ms", "prefill_ms", "decode_ms"))
        for call in graph["calls"]
    ]
    outside = (elapsed - sum(inside)) / calls
    return [{"engine_ms": each, "outside_ms": outside, "chain_ms": elapsed} for each in inside]


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=5, help="chains (default: 5)")
    arguments = made.parse_args()
    calls, rounds = (8, 4) if arguments.quick else (8, arguments.rounds)
    backend = "sim" if arguments.quick else "vllm"
    report = Report("outside", {"backend": backend, "calls": calls, "rounds": rounds})
    with (
        environment(PARROT_SIM_STEP_MS="25", PARROT_SIM_PREFILL_TOKENS_PER_S="3000"),
        running("--backend", backend) as stack,
    ):
        asyncio.run(chain(stack.url, 2))
        for number in range(rounds):
            report.samples += [{"chain": number, **s} for s in asyncio.run(chain(stack.url, calls))]
    outside = spread([sample["outside_ms"] for sample in report.samples])
    engine = spread([sample["engine_ms"] for sample in report.samples])
    whole = [sample["outside_ms"] / (sample["outside_ms"] + sample["engine_ms"]) for sample in report.samples]
    rows = [
        (name, *(f"{of[key]:,.1f}" for key in ("min", "p50", "max")))
        for name, of in (("in the engine", engine), ("outside", outside))
    ]
    print_table(["a call's time, ms", "min", "p50", "max"], rows)
    report.summary = {
        "outside_ms_p50": outside["p50"],
        "engine_ms_p50": engine["p50"],
        "outside_share_p50": spread(whole)["p50"],
    }
    report.show(arguments.json)


if __name__ == "__main__":
    main()
