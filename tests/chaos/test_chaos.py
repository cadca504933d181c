"""Real processes, killed at random moments under load: nothing accepted is lost, doubled or changed."""

from __future__ import annotations

import secrets

import pytest
from tests.chaos.cluster import Size
from tests.chaos.storm import ZOMBIES, report, storm

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
KILLS = 12
PAUSES = 4


async def test_a_storm_of_kills_loses_nothing_and_changes_nothing() -> None:
    seed = secrets.randbelow(1 << 31)
    outcome = await storm(KILLS, seed)
    assert not outcome.broken, report(outcome, seed)
    assert len(outcome.kills) >= KILLS
    assert outcome.summary["calls"] > KILLS
    assert outcome.summary["transcripts"] > outcome.summary["calls"]


async def test_an_engine_that_wakes_up_after_it_was_given_up_changes_nothing() -> None:
    seed = secrets.randbelow(1 << 31)
    outcome = await storm(PAUSES, seed, Size(engines=1), ZOMBIES)
    assert not outcome.broken, report(outcome, seed)
    assert outcome.summary["attempts"]["lost"] > PAUSES
