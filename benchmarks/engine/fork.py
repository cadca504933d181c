"""Children of one long context: forks of held KV, against the whole prompt sent to plain vLLM.

Each child adds a suffix and generates a token. Plain vLLM gets the same prompts, whole, and has its
prefix cache; the two engines take turns, and while one works the other sleeps.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from benchmarks.engine.rig import bare_vllm, english, options, started
from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.base import Backend, Sampling
from parrot_engine.backends.vllm import VllmBackend

PARENT_TOKENS = 4000
CHILDREN = (1, 8, 64)
ONE = Sampling(max_tokens=1, ignore_eos=True)


async def forked(backend: Backend, parent: str, suffixes: list[list[int]], name: str) -> dict[str, Any]:
    """Children as forks: seconds, and the blocks they took at most."""
    before = (await backend.audit()).free_blocks
    began = time.monotonic()
    cached = await asyncio.gather(
        *(child(backend, parent, suffix, f"{name}/{number}") for number, suffix in enumerate(suffixes))
    )
    seconds = time.monotonic() - began
    blocks = before - (await backend.audit()).free_blocks
    for number in range(len(suffixes)):
        await backend.free_context(f"{name}/{number}")
    return {"way": "fork", "seconds": seconds, "blocks": blocks, "cached": statistics.median(cached)}


async def child(backend: Backend, parent: str, suffix: list[int], context_id: str) -> int:
    """One child: the tokens whose KV was there."""
    await backend.fill(suffix, context_id, parent, lazy=True)
    cached = 0
    async for step in backend.generate(ONE, context_id, hold=True):
        cached = step.cached_tokens
    return cached


async def whole(llm: Any, prompt: list[int], suffixes: list[list[int]], name: str) -> dict[str, Any]:
    """The same prompts as requests of plain vLLM."""
    from vllm import SamplingParams, TokensPrompt

    async def ask(number: int, suffix: list[int]) -> int:
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        cached = 0
        async for output in llm.generate(
            TokensPrompt(prompt_token_ids=prompt + suffix), params, f"{name}/{number}"
        ):
            cached = output.num_cached_tokens or cached
        return cached

    began = time.monotonic()
    cached = await asyncio.gather(*(ask(number, suffix) for number, suffix in enumerate(suffixes)))
    return {
        "way": "whole",
        "seconds": time.monotonic() - began,
        "blocks": 0,
        "cached": statistics.median(cached),
    }


async def measure(rounds: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/fork", {"rounds": rounds, "parent_tokens": PARENT_TOKENS})
    chosen = options(capacity=max(CHILDREN), context_window_tokens=8192, kv_cache_bytes=512 << 20)
    async with started(VllmBackend(chosen)) as backend, bare_vllm(chosen) as llm:
        tokenizer = backend.tokenizer
        prompt = tokenizer.encode_value(english(backend, PARENT_TOKENS, 1))[:PARENT_TOKENS]
        began = time.monotonic()
        await backend.fill(prompt, "parent")
        report.summary["parent_fill_s"] = time.monotonic() - began
        await whole(llm, prompt, [[]], "parent")
        for count in CHILDREN:
            for number in range(rounds + 1):
                # Suffixes are new each time: nothing of them is cached.
                seen = 10_000 * count + 1000 * number
                texts = [f" Question {seen + place}: what is a name?" for place in range(2 * count)]
                suffixes = [tokenizer.encode_value(text) for text in texts]
                name = f"{count}-{number}"
                for sample in (
                    await forked(backend, "parent", suffixes[:count], f"fork-{name}"),
                    await whole(llm, prompt, suffixes[count:], f"whole-{name}"),
                ):
                    # The first of each is a warm-up.
                    report.samples += [{"children": count, **sample}] if number else []
    summarise(report)
    return report


def summarise(report: Report) -> None:
    """Medians by number of children and way."""
    rows = []
    for count in CHILDREN:
        of = {
            way: [s for s in report.samples if (s["children"], s["way"]) == (count, way)]
            for way in ("fork", "whole")
        }
        fork_s, whole_s = (statistics.median(s["seconds"] for s in of[way]) for way in ("fork", "whole"))
        blocks = statistics.median(s["blocks"] for s in of["fork"])
        report.summary[f"fork_ms_{count}"] = fork_s * 1000
        report.summary[f"whole_ms_{count}"] = whole_s * 1000
        report.summary[f"ratio_{count}"] = fork_s / whole_s
        report.summary[f"blocks_per_child_{count}"] = blocks / count
        cached = [statistics.median(s["cached"] for s in of[way]) for way in ("fork", "whole")]
        rows.append((count, f"{fork_s * 1000:.0f}", f"{whole_s * 1000:.0f}", f"{blocks:.0f}", *cached))
    print_table(["children", "fork ms", "whole ms", "fork blocks", "fork cached", "whole cached"], rows)


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    asyncio.run(measure(2 if arguments.quick else 7)).show(arguments.json)


if __name__ == "__main__":
    main()
