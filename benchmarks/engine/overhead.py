"""Plain requests through our engine, against bare vLLM in the same process layout.

Two engines with the same model and settings, one vLLM's own AsyncLLM with its own scheduler, one ours;
they take turns, and while one works the other sleeps. Ours is measured twice: the backend alone, and
programs as a manager sends them, streaming over a real bus.

Besides the time, which swings with what else the machine does, each batch's processor time is noted: of
this process, of the bus, and of vLLM's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.engine.rig import Client, Watch, bare_vllm, bus, client, english, options, started
from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.base import Backend, Sampling
from parrot_engine.backends.vllm import VllmBackend

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 48
BATCH = 8
WAYS = ("bare", "backend", "programs")
CPU_KINDS = ("service", "bus", "vllm")


@dataclass
class Sample:
    """One request: when its first token came, after it was asked for."""

    ttft_s: float


Ask = Callable[[str], Awaitable[Sample]]


def ask_bare(llm: Any, backend: Backend) -> Ask:
    """Through vLLM itself, detokenized as ours is."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0, output_kind=RequestOutputKind.DELTA
    )

    async def ask(text: str) -> Sample:
        began, first = time.monotonic(), 0.0
        prompt = TokensPrompt(prompt_token_ids=backend.tokenizer.encode_value(text))
        async for _ in llm.generate(prompt, params, f"bare-{time.monotonic_ns()}"):
            first = first or time.monotonic()
        return Sample(first - began)

    return ask


def ask_backend(backend: Backend) -> Ask:
    """Through the backend."""
    sampling = Sampling(max_tokens=OUTPUT_TOKENS, ignore_eos=True)

    async def ask(text: str) -> Sample:
        began, first = time.monotonic(), 0.0
        context_id = f"c-{time.monotonic_ns()}"
        await backend.fill(backend.tokenizer.encode_value(text), context_id, lazy=True)
        async for _ in backend.generate(sampling, context_id):
            first = first or time.monotonic()
        await backend.free_context(context_id)
        return Sample(first - began)

    return ask


def ask_programs(sender: Client, watch: Watch) -> Ask:
    """As programs, to the value's publication."""

    async def ask(text: str) -> Sample:
        began = time.monotonic()
        output = sender.output(f"v{time.monotonic_ns()}", OUTPUT_TOKENS)
        # What the other ways are not asked for: it costs vLLM a little in every step.
        output.generate.sampling.ClearField("min_tokens")
        context_id = sender.send("call", sender.text(text), output)
        await sender.end(context_id)
        return Sample(watch.traces[context_id].tokens_s[0] - began)

    return ask


async def batch(ask: Ask, texts: Sequence[str]) -> dict[str, float]:
    """All at once, then one alone: rate and processor time of those, time to first token of this one."""
    began, used = time.monotonic(), cpu_ms()
    await asyncio.gather(*(ask(text) for text in texts[1:]))
    seconds, now = time.monotonic() - began, cpu_ms()
    alone = await ask(texts[0])
    return {
        "tokens_per_s": (len(texts) - 1) * OUTPUT_TOKENS / seconds,
        "ttft_ms": alone.ttft_s * 1000,
        **{f"cpu_ms_{kind}": now[kind] - used[kind] for kind in now},
    }


def cpu_ms() -> dict[str, float]:
    """Processor time so far: of this process, the bus, and vLLM's, by the kernel's count of each thread."""
    process = psutil.Process()
    found = dict.fromkeys(CPU_KINDS, 0.0)
    for member in (process, *process.children(recursive=True)):
        kind = "service" if member == process else "bus" if "nats" in member.name() else "vllm"
        for thread in Path(f"/proc/{member.pid}/task").iterdir():
            # A thread may end meanwhile.
            with suppress(OSError):
                found[kind] += int((thread / "schedstat").read_text().split()[0]) / 1e6
    return found


async def measure(rounds: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/overhead", {"rounds": rounds, "batch": BATCH, "prompt_tokens": PROMPT_TOKENS})
    chosen = options(kv_cache_bytes=512 << 20)
    async with (
        bus() as made,
        started(VllmBackend(chosen)) as backend,
        client(backend, made) as sender,
        bare_vllm(chosen) as llm,
    ):
        ways = {
            "bare": ask_bare(llm, backend),
            "backend": ask_backend(backend),
            "programs": ask_programs(sender, Watch(backend)),
        }
        for number in range(rounds + 1):
            # Who begins changes, and each text is seen once.
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                start = (BATCH + 1) * (3 * number + WAYS.index(way))
                texts = [english(backend, PROMPT_TOKENS, start + place) for place in range(BATCH + 1)]
                sample = {"way": way, "round": number, **await batch(ways[way], texts)}
                # The first round is a warm-up.
                report.samples += [sample] if number else []
    summarise(report, rounds)
    return report


def summarise(report: Report, rounds: int) -> None:
    """Ratios and differences within each round, and their medians."""
    of = {(sample["way"], sample["round"]): sample for sample in report.samples}
    rows = []
    for way in WAYS:
        found = [of[way, number] for number in range(1, rounds + 1)]
        rows.append(
            (
                way,
                f"{statistics.median(s['tokens_per_s'] for s in found):.1f}",
                f"{statistics.median(s['ttft_ms'] for s in found):.1f}",
                *(f"{statistics.median(s[f'cpu_ms_{kind}'] for s in found):.0f}" for kind in CPU_KINDS),
            )
        )
    print_table(["way", "tokens/s", "ttft ms", *(f"{kind}, cpu ms" for kind in CPU_KINDS)], rows)
    for way in WAYS[1:]:
        pairs = [(of[way, number], of["bare", number]) for number in range(1, rounds + 1)]
        ratios = sorted(ours["tokens_per_s"] / bare["tokens_per_s"] for ours, bare in pairs)
        extra = sorted(ours["ttft_ms"] - bare["ttft_ms"] for ours, bare in pairs)
        suffix = "" if way == "programs" else f"_{way}"
        report.summary[f"throughput_ratio{suffix}"] = statistics.median(ratios)
        report.summary[f"throughput_ratio_min{suffix}"] = ratios[0]
        report.summary[f"throughput_ratio_max{suffix}"] = ratios[-1]
        report.summary[f"ttft_extra_ms{suffix}"] = statistics.median(extra)
        for kind in CPU_KINDS:
            more = [ours[f"cpu_ms_{kind}"] - bare[f"cpu_ms_{kind}"] for ours, bare in pairs]
            report.summary[f"cpu_extra_ms_{kind}{suffix}"] = statistics.median(more)


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=15, help="batches of each kind")
    given = made.parse_args()
    # On the loop that the engine runs on.
    uvloop.run(measure(3 if given.quick else given.rounds)).show(given.json)


if __name__ == "__main__":
    main()
