"""Features are switched off by settings that the services have."""

from __future__ import annotations

import pytest

from parrot_bench import ablations
from parrot_bench.registry import NAMES
from parrot_engine.settings import EngineSettings
from parrot_manager.settings import FEATURES, ManagerSettings


def test_every_feature_of_the_scheduler_can_be_left_out() -> None:
    assert set(ablations.SCHEDULER) == FEATURES


@pytest.mark.parametrize("system", ablations.systems())
def test_every_way_to_have_less_is_a_setting_of_a_service(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert system in NAMES
    engine, manager = EngineSettings.load([]), ManagerSettings.load([])
    given = ablations.environment(system)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    told = (EngineSettings.load([]), ManagerSettings.load([]))
    changed = [
        field
        for before, after in zip((engine, manager), told, strict=True)
        for field in type(before).model_fields
        if field not in {"engine_id", "manager_id"} and getattr(before, field) != getattr(after, field)
    ]
    assert len(changed) == len(given) == (0 if system == "parrot" else 1)


def test_all_is_every_feature_once() -> None:
    assert ablations.names(["all", "grouping"]) == [f"parrot-without-{name}" for name in ablations.FEATURES]
    assert ablations.names(["request_fifo", "grouping"]) == [
        "parrot-as-request_fifo",
        "parrot-without-grouping",
    ]
    assert ablations.names([]) == []


def test_what_is_on_only_where_it_is_asked_for_is_an_addition() -> None:
    assert ablations.names(["attention"]) == ["parrot-with-attention"]
    assert ablations.environment("parrot-with-attention") == {"PARROT_ATTENTION": "parrot"}
    assert "parrot-with-attention" not in ablations.names(["all"])
    assert EngineSettings.load([]).attention != "parrot"


@pytest.mark.parametrize("name", ["", "Grouping", "parrot", "everything", "parrot-without-grouping"])
def test_what_is_no_feature_is_said_to_be_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"grouping.*request_fifo"):
        ablations.names([name])


@pytest.mark.parametrize(
    "name",
    [
        "client",
        "grouping",
        "parrot-without-",
        "parrot-as-grouping",
        "parrot-with-grouping",
        "parrot-without-attention",
        "",
    ],
)
def test_only_what_is_ours_has_an_environment(name: str) -> None:
    with pytest.raises(KeyError):
        ablations.environment(name)
