"""An engine in the test's process that plans attention, and what its kernel did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from parrot_engine.backends.vllm.wire import Errand
from tests.support.vllm_engine import InProcessEngine

Outputs = list[list[int]]
Script = Callable[[InProcessEngine], Outputs]


def builder(engine: InProcessEngine) -> Any:
    """Whoever plans the engine's attention: `ParrotCpuMetadataBuilder`."""
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    return runner.attn_groups[0][0].metadata_builders[0]


@dataclass(slots=True)
class Done:
    """What an engine's attention did.

    Attributes:
        steps: that the kernel was planned for.
        rows: decode rows in them.
        shared_items: pieces of KV in them that several rows read at once.
        known_trees: plans that were made of a tree that was told.
        other_rows: rows that vLLM's own op did.
    """

    steps: int = 0
    rows: int = 0
    shared_items: int = 0
    known_trees: int = 0
    other_rows: int = 0

    def note(self, common: Any, made: Any) -> None:
        """Counts a step: vLLM's description of it, and the metadata that was made."""
        rows = getattr(made, "rows", 0)
        self.rows += rows
        self.other_rows += common.num_reqs - rows
        if rows:
            self.steps += 1
            self.shared_items += int(made.plan.items[:, 0].sum())


@contextmanager
def watched(planner: Any) -> Iterator[Done]:
    """What a `ParrotCpuMetadataBuilder` does in the block."""
    done, build, plan_tree = Done(), planner.build, planner._planner.plan_tree

    def built(common_prefix_len: int, common_attn_metadata: Any, *more: Any, **named: Any) -> Any:
        made = build(common_prefix_len, common_attn_metadata, *more, **named)
        done.note(common_attn_metadata, made)
        return made

    def planned(*arguments: Any) -> Any:
        plan = plan_tree(*arguments)
        done.known_trees += 1
        return plan

    with patch.object(planner, "build", built), patch.object(planner._planner, "plan_tree", planned):
        yield done


def both(engine: InProcessEngine, script: Script) -> tuple[Outputs, Outputs, Done]:
    """What a script generates without the kernel and with it, and what the kernel did."""
    planner, outputs = builder(engine), []
    for planner.enabled in (False, True):
        with watched(planner) as done:
            outputs.append(script(engine))
        _forget(engine)
    return outputs[0], outputs[1], done


def tokens(engine: InProcessEngine, names: Sequence[str]) -> Outputs:
    """The output tokens of requests."""
    return [list(engine.last[name].outputs[0].token_ids) for name in names]


def fill(engine: InProcessEngine, prompt: Sequence[int], context: str, parent: str = "") -> None:
    """Computes a context's KV, which is held then."""
    engine.submit(prompt, 1, Errand(context, parent, hold=True, fill=True))
    engine.run()


def _forget(engine: InProcessEngine) -> None:
    """Lets go of all that is held or cached: what comes next computes everything itself."""
    audit = engine.core.parrot_audit()
    assert audit["faults"] == []
    engine.core.parrot_free_contexts(audit["held_contexts"])
    assert engine.core.reset_prefix_cache()
