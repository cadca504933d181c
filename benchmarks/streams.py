"""Tokens per second streamed end to end, for 1, 16 and 64 streams at once.

The engine is simulated, so that what is measured is everything around it: engine, bus, gateway and
HTTP, on the same cores as the client that reads. Two profiles: `paced`, where each stream makes 30
tokens a second, as a busy accelerator would, and the question is whether the system keeps the pace;
and `flat_out`, where a step takes a millisecond, and the question is where it tops out.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Report, parser, print_table
from benchmarks.http_client import Streamed, request, stream
from benchmarks.stack import running

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAMS = (1, 16, 64)
PROFILES = {"paced": 1000 / 30, "flat_out": 1.0}


async def one(url: str, number: int, tokens: int) -> Streamed:
    """One application of one call, streamed to its end."""
    session = (await request(url, "POST", "/v1/sessions", {}))["id"]
    call = {
        "prompt": "Application number {{number}} says: {{text}}",
        "placeholders": [
            {"name": "number", "in_out": "in", "value": str(number)},
            {
                "name": "text",
                "in_out": "out",
                "semantic_var_id": "text",
                "sampling": {"max_tokens": tokens, "ignore_eos": True},
            },
        ],
    }
    await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": [call]})
    return await stream(url, f"/v1/sessions/{session}/variables/text/stream")


async def together(url: str, streams: int, tokens: int) -> dict[str, Any]:
    """`streams` applications at once."""
    started = time.perf_counter()
    done = await asyncio.gather(*(one(url, number, tokens) for number in range(streams)))
    elapsed = time.perf_counter() - started
    assert all(each.ended == "done" for each in done)
    return {
        "streams": streams,
        "tokens": tokens,
        "elapsed_s": elapsed,
        "tokens_per_s": streams * tokens / elapsed,
        "first_delta_ms": sorted(each.first_s for each in done)[streams // 2] * 1e3,
        "events": sum(each.deltas for each in done),
    }


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """These variables, for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(profile: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Samples of one profile: every number of streams, `rounds` times, interleaved."""
    step_ms = PROFILES[profile]
    tokens = int(seconds * 1000 / step_ms)
    samples = []
    with environment(PARROT_SIM_STEP_MS=str(step_ms)), running("--backend", "sim") as stack:
        asyncio.run(together(stack.url, 4, 20))
        for _ in range(rounds):
            for streams in STREAMS:
                sample = asyncio.run(together(stack.url, streams, tokens))
                samples.append({"profile": profile, **sample, "ideal_per_s": streams * 1000 / step_ms})
    return samples


def median(samples: list[dict[str, Any]], key: str) -> float:
    """The median of one figure."""
    return float(sorted(sample[key] for sample in samples)[len(samples) // 2])


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    rounds, seconds = (1, 3.0) if arguments.quick else (5, 10.0)
    report = Report("streams", {"rounds": rounds, "seconds": seconds, "step_ms": PROFILES})
    for profile in PROFILES:
        report.samples += measure(profile, rounds, seconds)
    rows = []
    for profile in PROFILES:
        for streams in STREAMS:
            of = [s for s in report.samples if (s["profile"], s["streams"]) == (profile, streams)]
            rate, ideal = median(of, "tokens_per_s"), of[0]["ideal_per_s"]
            rows.append(
                (f"{profile}, {streams} streams", f"{rate:,.0f}", f"{ideal:,.0f}", f"{rate / ideal:.2f}")
            )
            report.summary[f"tokens_per_s_{profile}_{streams}"] = rate
            report.summary[f"pace_{profile}_{streams}"] = rate / ideal
    print_table(["median", "tokens/s", "engine alone", "of it"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
