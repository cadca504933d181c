"""What long prompts do to an output that is being written beside them, with and without a limit for steps.

One output of 64 tokens is written while two streams of prompts of 1,000 tokens each are prefilled, one
prompt after another. The two ways take turns on one engine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, pairwise

from benchmarks.engine.rig import english, options, started
from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.base import Backend, Sampling
from parrot_engine.backends.vllm import VllmBackend

OUTPUT_TOKENS = 64
PROMPT_TOKENS = 1000
STREAMS = 2
LIMITS_MS = {"no limit": 0.0, "120 ms": 120.0}
WRITTEN = Sampling(max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0)


@dataclass
class Prefills:
    """Prompts that are prefilled one after the other, none of them known before."""

    backend: Backend
    places: count[int]
    tokens: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For the length of the block."""
        streams = [asyncio.create_task(self._stream()) for _ in range(STREAMS)]
        try:
            yield
        finally:
            for stream in streams:
                stream.cancel()
            ends = await asyncio.gather(*streams, return_exceptions=True)
        # A load that ended by itself is none: the figures would be of something else.
        for end in ends:
            if not isinstance(end, asyncio.CancelledError):
                raise RuntimeError("a stream of prompts ended early") from end

    async def _stream(self) -> None:
        for place in self.places:
            name = f"prompt-{place}"
            tokens = self.backend.tokenizer.encode_value(english(self.backend, PROMPT_TOKENS, place))
            result = await self.backend.fill(tokens[:PROMPT_TOKENS], name)
            self.tokens += result.computed_tokens
            await self.backend.free_context(name)


async def written(backend: Backend, name: str, step_ms: float) -> list[float]:
    """The gaps between an output's tokens, in ms."""
    await backend.fill(backend.tokenizer.encode_value(english(backend, 100, 1)), name)
    times: list[float] = []
    async for step in backend.generate(WRITTEN, name, step_ms=step_ms):
        times += [time.monotonic()] * len(step.token_ids)
    await backend.free_context(name)
    return [1000 * (later - earlier) for earlier, later in pairwise(times)]


async def measure(rounds: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/interference", {"rounds": rounds, "prompt_tokens": PROMPT_TOKENS})
    places = count(10)
    async with started(VllmBackend(options())) as backend:
        for number in range(rounds + 1):
            ways = list(LIMITS_MS.items())
            for way, step_ms in ways if number % 2 else reversed(ways):
                prefills = Prefills(backend, places)
                began = time.monotonic()
                async with prefills.running():
                    gaps_ms = await written(backend, f"chat-{number}-{way}", step_ms)
                rate = prefills.tokens / (time.monotonic() - began)
                sample = {"way": way, "gaps_ms": gaps_ms, "prefilled_per_s": rate}
                # The first of each is a warm-up.
                report.samples += [sample] if number else []
    summarise(report)
    return report


def summarise(report: Report) -> None:
    """Gaps and prefill by way."""
    rows = []
    for way in LIMITS_MS:
        samples = [sample for sample in report.samples if sample["way"] == way]
        gaps = sorted(gap for sample in samples for gap in sample["gaps_ms"])
        found = {
            "gap_p50_ms": statistics.median(gaps),
            "gap_p99_ms": gaps[int(0.99 * len(gaps))],
            "prefilled_per_s": statistics.median(sample["prefilled_per_s"] for sample in samples),
        }
        report.summary |= {f"{name}, {way}": value for name, value in found.items()}
        rows.append((way, *(f"{value:.0f}" for value in found.values())))
    print_table(["steps", "gap p50 ms", "gap p99 ms", "prefilled/s"], rows)


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    asyncio.run(measure(1 if arguments.quick else 6)).show(arguments.json)


if __name__ == "__main__":
    main()
