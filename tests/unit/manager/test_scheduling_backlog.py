"""How many ready calls wait and since when, as the fleet tells it: those without a place, each once."""

from __future__ import annotations

from dataclasses import replace

from tests.support.fleet import Site, call, engine

from parrot_manager.core.model import Ref
from parrot_manager.core.scheduling import Pending
from parrot_manager.core.scheduling.backlog import Backlog


def backlogs(site: Site) -> list[Backlog]:
    """What is told."""
    return list(site.fleet.backlogs)


def test_calls_wait_from_ready_to_placed() -> None:
    site = Site.of(engine("e", capacity=1))
    first, second = call(ready_ms=10), call(ready_ms=20)
    site.ready(first, second)
    assert backlogs(site) == [Backlog("m", 2, 10)]
    site.place()
    assert backlogs(site) == [Backlog("m", 1, 20)]
    site.end(first)
    site.place()
    assert backlogs(site) == []


def test_what_is_said_again_keeps_its_place_and_its_time() -> None:
    site = Site.of()
    first, second = call(ready_ms=10), call(ready_ms=20)
    site.ready(first, second, replace(first, name="another"))
    assert backlogs(site) == [Backlog("m", 2, 10)]


def test_what_is_taken_back_or_forgotten_does_not_wait() -> None:
    site = Site.of()
    first, second, third = (call(ready_ms=number) for number in (10, 20, 30))
    site.ready(first, second, third)
    site.fleet.withdraw(*first.key)
    assert backlogs(site) == [Backlog("m", 2, 20)]
    site.fleet.forget_call(*second.key)
    assert backlogs(site) == [Backlog("m", 1, 30)]


def test_a_call_whose_input_is_still_made_does_not_wait() -> None:
    site = Site.of()
    ready = call(ready_ms=10)
    site.ready(ready)
    site.ready(replace(ready, pending=(Pending("v", Ref("s", "c-0", 1)),)))
    assert backlogs(site) == []


def test_each_model_that_is_asked_for_has_its_own() -> None:
    site = Site.of()
    site.ready(call(model="a", ready_ms=1), call(model="b", ready_ms=2), call(model="", ready_ms=3))
    assert backlogs(site) == [Backlog("a", 1, 1), Backlog("b", 1, 2), Backlog("", 1, 3)]


def test_a_placement_that_was_not_carried_out_leaves_its_call_to_be_said_again() -> None:
    site = Site.of(engine("e"))
    ready = call(ready_ms=10)
    site.ready(ready)
    (placement,) = site.fleet.place(0)
    site.fleet.refused(placement)
    assert backlogs(site) == []
    site.ready(ready)
    assert backlogs(site) == [Backlog("m", 1, 10)]
