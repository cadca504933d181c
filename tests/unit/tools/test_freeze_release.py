"""What a release could not work beside is told; additions are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.schema import SchemaItem
from tools import freeze_release

Schema = freeze_release.Schema


def schema_of(*more: SchemaItem, table: str = "calls") -> Schema:
    """A schema with one table that refers to another."""
    metadata = MetaData()
    Table("sessions", metadata, Column("id", Text, primary_key=True))
    Table(
        table,
        metadata,
        Column("number", Integer, primary_key=True),
        Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
        *more,
    )
    return {"newest_step": "0005", "tables": freeze_release.tables_of(metadata)}


RELEASED = schema_of(Column("name", Text, nullable=False))


def test_this_code_works_beside_the_newest_release() -> None:
    assert freeze_release.misfits(freeze_release.newest_release()) == []


@pytest.mark.parametrize(
    "added",
    [
        Column("later", Text, server_default="", nullable=False),
        Column("later", Text),
        Index("later", "name"),
    ],
)
def test_what_can_be_left_out_may_be_added(added: SchemaItem) -> None:
    now = schema_of(Column("name", Text, nullable=False), added)
    assert freeze_release.schema_misfits(RELEASED, now) == []


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (schema_of(), "table calls: column name is gone"),
        (schema_of(table="other"), "table calls is gone"),
        (schema_of(Column("name", Integer, nullable=False)), "column name was TEXT, is INTEGER"),
        (schema_of(Column("name", Text)), "column name may be null in one of the two alone"),
        (
            schema_of(Column("name", Text, nullable=False), Column("must", Text, nullable=False)),
            "column must is new, and who does not know it can't add a row",
        ),
        (
            schema_of(Column("name", Text, nullable=False), UniqueConstraint("name")),
            "unique (name) is new",
        ),
        (
            schema_of(Column("name", Text, nullable=False), Index("one", "name", unique=True)),
            "unique index one is new",
        ),
    ],
)
def test_what_the_release_would_stumble_over_is_told(now: Schema, told: str) -> None:
    found = freeze_release.schema_misfits(RELEASED, now)
    assert any(told in text for text in found), found


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (UniqueConstraint("name"), "unique (name) is gone"),
        (Index("one", "name", unique=True), "unique index one is gone"),
    ],
)
def test_a_rule_that_kept_things_from_being_done_twice_may_not_go(gone: SchemaItem, told: str) -> None:
    known = schema_of(Column("name", Text, nullable=False), gone)
    now = schema_of(Column("name", Text, nullable=False))
    assert freeze_release.schema_misfits(known, now) == [f"table calls: {told}"]


def test_what_the_release_says_that_it_does_not_use_may_go() -> None:
    known = schema_of(Column("name", Text, info={"unused": True}))
    assert freeze_release.schema_misfits(known, schema_of()) == []
    metadata = MetaData()
    Table("old", metadata, Column("id", Text, primary_key=True), info={"unused": True})
    old = {"tables": freeze_release.tables_of(metadata)}
    assert freeze_release.schema_misfits(old, schema_of()) == []


def test_a_default_that_is_gone_is_told() -> None:
    known = schema_of(Column("name", Text, nullable=False, server_default=""))
    now = schema_of(Column("name", Text, nullable=False))
    assert "its default no more" in freeze_release.schema_misfits(known, now)[0]


def test_a_step_that_the_release_can_not_work_with_is_told() -> None:
    steps = {"0004": "0004", "0005": "0005", "0006": "0005", "0007": "0006"}
    found = freeze_release.step_misfits(RELEASED, steps)
    assert found == ["step 0007 works with no code before 0006; the release knows none after 0005"]


def test_every_step_since_there_are_releases_says_what_works_with_it() -> None:
    steps = freeze_release.steps_now()
    assert steps["0005"] == "0005"
    assert all(works_with <= step for step, works_with in steps.items())


def test_a_field_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "9.9"
    freeze_release.freeze(folder)
    assert freeze_release.proto_misfits(folder) == []
    protos = (folder / freeze_release.PROTOS).read_bytes()
    # As if the release had known a field by another name.
    (folder / freeze_release.PROTOS).write_bytes(
        protos.replace(b"heartbeat_interval_ms", b"heartbeat_interval_xx")
    )
    assert any("heartbeat_interval" in text for text in freeze_release.proto_misfits(folder))


def test_a_release_that_is_there_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(freeze_release, "ROOT", tmp_path)
    monkeypatch.setattr(freeze_release, "RELEASED", tmp_path / "released")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "3.4.5"\n')
    (tmp_path / "released" / "3.4").mkdir(parents=True)
    assert freeze_release.main([]) == 1
    assert "released/3.4 is there" in capsys.readouterr().err


def test_of_several_releases_the_newest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze_release, "RELEASED", tmp_path)
    for name in ("0.9", "0.10", "0.2"):
        (tmp_path / name).mkdir()
    assert freeze_release.newest_release().name == "0.10"
