"""The forest of requests that decode, kept from step to step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from parrot_engine.backends.vllm.forest import DecodingForest


def common(left: list[int], right: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


def adopted(source: random.Random, blocks: dict[str, list[int]], fresh: Iterator[int]) -> list[int]:
    """The blocks of a request that begins with some of another one's, or with none."""
    parents = list(blocks.values())
    parent = source.choice(parents) if parents and source.random() < 0.8 else []
    return [*parent[: source.randint(0, len(parent))], *islice(fresh, source.randrange(4))]


@pytest.mark.parametrize("growth", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(20))
def test_neighbours_share_what_is_said_and_together_as_much_as_can_be(seed: int, growth: float) -> None:
    source, blocks = random.Random(seed), dict[str, list[int]]()
    fresh = iter(source.sample(range(5_000), 5_000))
    forest, decoding = DecodingForest(blocks.__getitem__), set[str]()
    for step in range(60):
        for name in sorted(decoding):
            if source.random() < growth:
                blocks[name].append(next(fresh))
        blocks[f"r{step}"] = adopted(source, blocks, fresh)
        for name in source.sample(sorted(blocks), min(len(blocks), source.randrange(4))):
            decoding ^= {name}
        tree = forest.step(decoding)
        assert sorted(tree.names) == sorted(decoding)
        pairs = [common(blocks[a], blocks[b]) for a, b in pairwise(tree.names)]
        assert tree.shared.tolist()[1:] == pairs
        # In the order of their blocks, neighbours have the most in common that any order gives them.
        assert sum(pairs) == sum(common(a, b) for a, b in pairwise(sorted(blocks[n] for n in decoding)))


def test_a_step_with_the_same_requests_looks_at_nothing() -> None:
    looked: list[str] = []

    def blocks_of(name: str) -> list[int]:
        looked.append(name)
        return [1, 2, len(looked) + 2]

    forest = DecodingForest(blocks_of)
    tree = forest.step({"a", "b"})
    assert forest.step({"b", "a"}) is tree
    assert sorted(looked) == ["a", "b"]
    assert forest.step({"a", "b", "c"}) is not tree
    assert sorted(looked) == ["a", "b", "c"]


def test_one_that_comes_back_with_other_blocks_is_looked_at_again() -> None:
    blocks = {"a": [1, 2], "b": [1, 2]}
    forest = DecodingForest(lambda name: blocks[name])
    assert forest.step({"a", "b"}).shared.tolist() == [0, 2]
    forest.step({"a"})
    blocks["b"] = [7, 8]
    assert forest.step({"a", "b"}).shared.tolist() == [0, 0]
    assert forest.step(set()).names == ()
