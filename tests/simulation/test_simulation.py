"""The manager's core in simulated trouble: promises hold in every seed, and a broken core is found out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation, hunt, mutated
from tests.simulation.run import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 1_500
SEEDS_OF_A_MUTATION = 60
DIGEST = """
from tests.simulation.world import World
world = World({seed}, keep_record=True)
world.run()
print(world.record.digest())
"""


@pytest.mark.timeout(600)
def test_promises_hold_whatever_goes_wrong() -> None:
    """`make simulate SEEDS=10000` plays more; `make simulate SEED=n` plays one and prints its history."""
    broken = simulate(1, SEEDS, os.cpu_count() or 1)
    assert not broken, "\n".join(f"seed {outcome.seed}: {outcome.broke}" for outcome in broken)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_plays_the_same_run_in_every_process(seed: int) -> None:
    """Nothing depends on how this process hashes text."""
    assert _digest(seed, "1") == _digest(seed, "2")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_still_fits_the_core(mutation: Mutation) -> None:
    """A core that has changed takes its mutations along."""
    spec = importlib.util.find_spec(mutation.module)
    assert spec is not None
    assert spec.origin is not None
    assert mutated(Path(spec.origin).read_text(), mutation)


@pytest.mark.parametrize(
    "name",
    [
        "decodes again what was streamed",
        "dispatches without storing the attempt",
        "gives up at the first loss",
        "places one call more than an engine takes",
        "restores a session without its deadline",
    ],
)
def test_a_broken_core_is_found_out(name: str) -> None:
    """Some of them; `make simulate-mutations` breaks it in all ways there are."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    assert hunt(mutation, SEEDS_OF_A_MUTATION).startswith("seed ")


def _digest(seed: int, hash_seed: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", DIGEST.format(seed=seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout
