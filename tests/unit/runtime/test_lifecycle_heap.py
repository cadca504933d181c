"""A service that serves looks for garbage in what comes, and not in what stays."""

from __future__ import annotations

import gc

import pytest

from parrot_runtime.lifecycle import Stop, _settle_heap

pytestmark = pytest.mark.anyio


async def test_a_service_is_settled_once_it_says_that_it_serves() -> None:
    told: list[str] = []
    stop = Stop(lambda: told.append("begun"))
    assert told == []
    stop.begun()
    assert told == ["begun"]
    assert stop.has_begun


def test_what_is_there_then_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        _settle_heap()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
