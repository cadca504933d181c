"""vLLM's engine in the test's own process: plain, as a reference, or with the scheduler of contexts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parrot_engine.backends.vllm.arguments import environment, scheduler
from parrot_engine.backends.vllm.link import engine_config
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.models import ModelFolder


class InProcessEngine:
    """One model, stepped by hand.

    Args:
        contexts: with the scheduler that holds contexts; else vLLM's own, and no cache at all.
        ahead: vLLM schedules a step while the one before is computed.
        more: options of the backend.
    """

    def __init__(
        self, folder: Path, kv_cache_bytes: int, *, contexts: bool, ahead: bool = False, **more: Any
    ) -> None:
        plain: dict[str, Any] = {"dtype": "float32", "kv_cache_bytes": kv_cache_bytes}
        options = VllmOptions(str(folder), folder, **(plain | more))
        os.environ.update(environment(options))
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor.abstract import Executor

        config = engine_config(options, ModelFolder(folder, folder.name))
        config.scheduler_config.async_scheduling = ahead
        config.scheduler_config.scheduler_cls = scheduler(ahead) if contexts else None
        config.cache_config.enable_prefix_caching = contexts
        self._engine = LLMEngine(
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=False,
            multiprocess_mode=False,
        )
        self.core: Any = self._engine.engine_core.engine_core
        self.last: dict[str, Any] = {}
        """Of each request, its latest `RequestOutput`."""
        self._names = itertools.count()

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, errands: Sequence[Errand]
    ) -> list[Any]:
        """Generates greedily from all prompts at once; returns each one's last `RequestOutput`."""
        names = [
            self.submit(prompt, max_tokens, errand) for prompt, errand in zip(prompts, errands, strict=True)
        ]
        self.run()
        return [self.last[name] for name in names]

    def submit(self, prompt: Sequence[int], max_tokens: int, errand: Errand) -> str:
        """Asks for a greedy output of so many tokens; returns the request's name."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        name = f"r{next(self._names)}"
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            ignore_eos=True,
            extra_args=errand.to_wire(),
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        self._engine.add_request(name, tokens_input(list(prompt)), params)
        return name

    def step(self) -> None:
        """One step; what it made is in `last`."""
        for output in self._engine.step():
            self.last[output.request_id] = output

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self._engine.has_unfinished_requests():
            self.step()

    def close(self) -> None:
        """Gives its memory back."""
        self._engine.engine_core.shutdown()
