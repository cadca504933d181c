"""What it is worth to send a consumer ahead of its inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fleet import Site, engine

from parrot_manager.core.estimates import Lengths
from parrot_manager.core.model import Load
from parrot_manager.core.scheduling.streaming import Edge, worth

LENGTHS = Lengths(q50=128, q90=256)


@pytest.mark.parametrize(
    ("new_tokens", "early_tokens", "token_ms", "piece_token_ms", "gains"),
    [
        # The engine has not said.
        (3_000, 0, 0.0, 0.0, True),
        # Small pieces are computed on the side, as on a GPU.
        (0, 2_000, 0.125, 0.0, True),
        # They cost as much as alone, as on a CPU: nothing is hidden, the producer waits for it.
        (0, 2_000, 0.125, 0.125, False),
        # Nor of text that is there already.
        (3_000, 0, 0.125, 0.0, False),
        (3_000, 2_000, 0.125, 0.0, True),
    ],
)
def test_nothing_is_gained_where_prefill_holds_the_producer_up_for_as_long(
    new_tokens: int, early_tokens: int, token_ms: float, piece_token_ms: float, *, gains: bool
) -> None:
    site = Site.of(engine("a", kv_tokens=100_000_000))
    load = site.fleet.engines["a"]
    site.fleet.report("a", Load(step_ms=10, prefill_token_ms=token_ms, piece_token_ms=piece_token_ms))
    inputs = Edge(20_000, early_tokens + 64, early_tokens, {"a": 1.0})
    found = worth(load, inputs, new_tokens, LENGTHS)
    assert found.hidden_ms == pytest.approx((new_tokens + early_tokens) / load.pace.prefill_per_ms)
    assert (found.gain_ms > 0) == gains
    # From another engine it takes nothing.
    assert worth(load, replace(inputs, hurry={"b": 1.0}), new_tokens, LENGTHS).gain_ms > 0


@pytest.mark.parametrize(("piece_token_ms", "harm_ms"), [(0.0, 0.0), (0.125, 0.0), (0.25, 250.0)])
def test_others_lose_what_prefill_costs_more_in_pieces(piece_token_ms: float, harm_ms: float) -> None:
    site = Site.of(engine("a", kv_tokens=100_000_000))
    site.fleet.report("a", Load(step_ms=10, prefill_token_ms=0.125, piece_token_ms=piece_token_ms))
    found = worth(site.fleet.engines["a"], Edge(20_000, 2_064, 2_000, {"a": 1.0}), 0, LENGTHS)
    assert found.harm_ms == pytest.approx(harm_ms)


def test_a_prefill_alone_is_no_slower_than_an_engine_says_that_its_tokens_are() -> None:
    site = Site.of(engine("a", kv_tokens=100_000_000))
    site.fleet.report("a", Load(step_ms=10, prefill_token_ms=0.05))
    found = worth(site.fleet.engines["a"], Edge(20_000, 64, 0, {"a": 1.0}), 4_000, LENGTHS)
    assert found.hidden_ms == pytest.approx(10 + 4_000 * 0.05)
