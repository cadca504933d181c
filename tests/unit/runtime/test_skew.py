"""Which versions work together, and what the others are told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from parrot_runtime import skew
from parrot_runtime.errors import UNAVAILABLE, Fault


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is 1.4.2, and nothing was noted yet."""
    monkeypatch.setattr(skew, "parrot_version", lambda: "1.4.2")
    monkeypatch.setattr(skew, "_noted", set())


@pytest.mark.parametrize("version", ["1.4.2", "1.4.9", "1.3.0", "1.5.0rc1", "1.5.dev3+abc", "", "a fork"])
def test_a_release_next_to_this_one_is_let_in_and_so_is_who_does_not_say(version: str) -> None:
    skew.check("caller", version)


@pytest.mark.parametrize("version", ["1.2.9", "1.6.0", "2.4.2", "0.4.2", "1.40.0"])
def test_another_is_told_both_versions_and_what_to_do(version: str) -> None:
    with pytest.raises(Fault) as refused:
        skew.check("engine", version)
    assert refused.value.kind is UNAVAILABLE
    assert f"the engine is Parrot {version}, this manager 1.4.2" in refused.value.message
    assert "one release at a time" in refused.value.message


def test_what_a_peer_says_is_not_repeated_at_length() -> None:
    with pytest.raises(Fault) as refused:
        skew.check("caller", "9.9" + "x" * 5000)
    assert len(refused.value.message) < 400


def test_another_version_is_logged_once() -> None:
    with capture_logs() as logs:
        for _ in range(3):
            skew.check("caller", "1.5.0")
            skew.note("manager", "1.3.0")
            skew.note("manager", "1.4.2")
            skew.note("manager", "")
    told = [(entry["peer"], entry["version"]) for entry in logs]
    assert told == [("caller", "1.5.0"), ("manager", "1.3.0")]


def test_a_peer_that_says_something_else_each_time_fills_nothing() -> None:
    for number in range(1000):
        skew.note("caller", f"1.4.{number}")
    assert len(skew._noted) <= skew.MOST_NOTED
