"""vLLM's CPU worker, with one thing mended, and one passed on. Imported in the model's process only.

When a prompt is prefilled in several steps, each step samples a token that is thrown away, and vLLM
0.32 then turns the request's generator back by an offset. Generators on CPU have none: the call
raises, and the whole engine dies of one request with a seed. Here a sample that is thrown away is
not drawn from the request's generator at all, so there is nothing to turn back.

What the scheduler knows of the forest that decodes is passed on to whoever plans attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from parrot_engine.backends.vllm import forest
from parrot_engine.backends.vllm.arguments import CPU_ATTENTION, OWN_ATTENTION
from parrot_engine.backends.vllm.orphans import end_with_parent
from parrot_kernels.vllm_backend.tree import TreeRows


class MendedCPUWorker(CPUWorker):  # type: ignore[misc]
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Before the model is loaded: the scheduler, which does the same, is made only afterwards.
        end_with_parent()

    def attention(self) -> str:
        """The attention that the model's layers run with, by vLLM's name."""
        ours = all(getattr(builder, "enabled", False) for builder in _builders(self.model_runner))
        return OWN_ATTENTION if ours else CPU_ATTENTION

    def execute_model(self, scheduler_output: Any) -> Any:
        """Runs the model on a step's tokens."""
        tree = getattr(scheduler_output, forest.KEY, None)
        for rows in _told(self.model_runner):
            rows.tell(tree, self.model_runner.input_batch.req_id_to_index)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Samples a step's tokens."""
        runner = self.model_runner
        with _set_aside(runner.input_batch.generators, _discarded(runner)):
            return super().sample_tokens(grammar_output)


def _builders(runner: Any) -> Iterator[Any]:
    """Whoever plans attention."""
    for groups in runner.attn_groups:
        for group in groups:
            yield from group.metadata_builders


def _told(runner: Any) -> Iterator[TreeRows]:
    """Those who do it from a tree."""
    for builder in _builders(runner):
        tree = getattr(builder, "tree", None)
        if isinstance(tree, TreeRows):
            yield tree


def _discarded(runner: Any) -> list[int]:
    """Places in the batch whose prompt is not prefilled yet."""
    mask = runner.discard_request_mask.np[: runner.input_batch.num_reqs]
    return [int(place) for place in mask.nonzero()[0]]


@contextmanager
def _set_aside(generators: dict[int, Any], places: list[int]) -> Iterator[None]:
    """Takes the generators at `places` out for the length of the block."""
    aside = {place: generators.pop(place) for place in places if place in generators}
    try:
        yield
    finally:
        generators.update(aside)
