"""Decode steps of a real model, its forks sharing a long prompt: our attention kernel against vLLM's own.

One engine, in this process. The kernel is switched on and off from round to round, over the same forks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pydoc_data.topics import topics
from typing import Any

from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.vllm import VllmOptions
from parrot_engine.backends.vllm.arguments import environment
from parrot_engine.backends.vllm.link import engine_config
from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.models import ModelFolder, find_model
from parrot_engine.settings import default_cache_dir
from parrot_engine.text.tokens import ModelTokenizer

PROMPT_TOKENS = 6_000
END_TOKENS = 8
FORKS = (16, 32)
WINDOW_TOKENS = 8_192
KV_BYTES = 1 << 30
CHECK_PROMPT_TOKENS, CHECK_FORKS, CHECK_TOKENS = 1_200, 8, 24
"""Of the run in float32, in which tokens are compared."""


class Engine:
    """vLLM with our scheduler of contexts and our attention, stepped by hand."""

    def __init__(self, folder: ModelFolder, dtype: str) -> None:
        options = VllmOptions(
            str(folder.path),
            folder.path,
            dtype=dtype,
            capacity=max(FORKS),
            context_window_tokens=WINDOW_TOKENS,
            kv_cache_bytes=KV_BYTES,
            attention="parrot",
        )
        os.environ.update(environment(options))
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor.abstract import Executor

        config = engine_config(options, folder)
        self._engine = LLMEngine(
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=False,
            multiprocess_mode=False,
        )
        core: Any = self._engine.engine_core
        runner = core.engine_core.model_executor.driver_worker.worker.model_runner
        self.planner = runner.attn_groups[0][0].metadata_builders[0]
        if not self.planner.enabled:
            raise SystemExit("our kernel can't run here; the log above says why")

    def submit(self, name: str, prompt: Sequence[int], tokens: int, errand: Errand) -> None:
        """Asks for a greedy output."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        params = SamplingParams(
            max_tokens=tokens, temperature=0, ignore_eos=True, extra_args=errand.to_wire()
        )
        self._engine.add_request(name, tokens_input(list(prompt)), params)

    def step(self) -> list[Any]:
        """One step's outputs."""
        return list(self._engine.step())

    def run(self) -> dict[str, list[int]]:
        """Steps until all is done; each request's tokens."""
        last = {}
        while self._engine.has_unfinished_requests():
            for output in self.step():
                last[output.request_id] = list(output.outputs[0].token_ids)
        return last

    def abort(self, names: Sequence[str]) -> None:
        """Takes requests out."""
        self._engine.abort_request(list(names))
        self.run()

    def fill(self, prompt: Sequence[int]) -> None:
        """Computes the KV of the context that is forked."""
        self.submit("fill", prompt, 1, Errand("prompt", hold=True, fill=True))
        self.run()

    def close(self) -> None:
        """Gives its memory back."""
        self._engine.engine_core.shutdown()


@contextmanager
def forked(engine: Engine, text: list[int], prompt: int, forks: int, tokens: int) -> Iterator[list[str]]:
    """So many outputs behind the first `prompt` tokens of a text, each with an end of its own."""
    names = [f"fork{at}-of-{forks}" for at in range(forks)]
    for at, name in enumerate(names):
        end = text[prompt + END_TOKENS * at :][:END_TOKENS]
        engine.submit(name, text[:prompt] + end, tokens, Errand(name, "prompt"))
    yield names
    engine.abort(names)


def measured(engine: Engine, text: list[int], forks: int, rounds: int, steps: int) -> dict[str, Any]:
    """Median ms of a decode step with the kernel and without it, in each round."""
    ms: dict[str, list[float]] = {"off": [], "on": []}
    with forked(engine, text, PROMPT_TOKENS, forks, WINDOW_TOKENS - PROMPT_TOKENS - END_TOKENS):
        # Until every fork has its first token, and as often again.
        while len(engine.step()) < forks:
            pass
        for number in range(2 * rounds):
            # Off, on, on, off: what drifts is no one's.
            way = "off" if number % 4 in (0, 3) else "on"
            engine.planner.enabled = way == "on"
            engine.step()
            ms[way].append(statistics.median(_timed(engine) for _ in range(steps)))
        engine.planner.enabled = True
    ratios = [off / on for off, on in zip(ms["off"], ms["on"], strict=True)]
    return {"forks": forks, "ms": ms, "ratio": statistics.median(ratios)}


def _timed(engine: Engine) -> float:
    began = time.perf_counter()
    engine.step()
    return (time.perf_counter() - began) * 1e3


def same_tokens(folder: ModelFolder, text: list[int]) -> float:
    """The share of forks whose greedy outputs in float32 are the same with the kernel and without it."""
    engine = Engine(folder, "float32")
    engine.fill(text[:CHECK_PROMPT_TOKENS])
    found = []
    for engine.planner.enabled in (False, True):
        with forked(engine, text, CHECK_PROMPT_TOKENS, CHECK_FORKS, CHECK_TOKENS):
            found.append(engine.run())
    engine.close()
    off, on = found
    return sum(on[name] == off[name] for name in off) / len(off)


def measure(arguments: argparse.Namespace) -> Report:
    """The whole benchmark."""
    rounds, steps = (4, 4) if arguments.quick else (16, 12)
    folder = find_model("smollm2", default_cache_dir(), lambda line: None)
    text = ModelTokenizer.load(folder.path).encode_value("".join(topics[name] for name in sorted(topics)))
    report = Report(
        "kernels/end_to_end",
        {"model": folder.name, "prompt_tokens": PROMPT_TOKENS, "rounds": rounds, "steps": steps},
    )
    report.summary["tokens_equal"] = same_tokens(folder, text)
    engine = Engine(folder, "bfloat16")
    engine.fill(text[:PROMPT_TOKENS])
    for forks in FORKS:
        report.samples.append(measured(engine, text, forks, rounds, steps))
        report.summary[f"decode_ratio_{forks}"] = report.samples[-1]["ratio"]
    engine.close()
    print_table(
        ["forks of 6,000 tokens", "vLLM ms", "ours ms", "vLLM / ours"],
        [
            (
                sample["forks"],
                *(f"{min(sample['ms'][way]):.1f}" for way in ("off", "on")),
                f"{sample['ratio']:.2f}",
            )
            for sample in report.samples
        ],
    )
    return report


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    measure(arguments).show(arguments.json)


if __name__ == "__main__":
    main()
