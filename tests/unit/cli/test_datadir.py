"""One stack at a time lives in a data folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parrot_cli import datadir
from parrot_cli.errors import UpError

URL = "http://127.0.0.1:1"
HOLD = """
import sys
from pathlib import Path
from parrot_cli.datadir import held
with held(Path(sys.argv[1]), "http://127.0.0.1:1", print):
    print("held", flush=True)
    sys.stdin.read()
"""
# Inherits the lock from a holder that is gone by the time this says so.
LEFTOVER = """
import os, sys
from pathlib import Path
from parrot_cli.datadir import held
with held(Path(sys.argv[1]), "http://127.0.0.1:1", print) as data:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            pass
        print("orphaned", flush=True)
        sys.stdin.read()
    os._exit(0)
"""


@contextmanager
def running(script: str, folder: Path, word: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(folder), "up"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == word
        yield process
        assert process.stdin is not None
        process.stdin.close()


def refuse(text: str) -> None:
    raise AssertionError(f"waited: {text}")


def test_holds_a_folder_it_makes(tmp_path: Path) -> None:
    with datadir.held(tmp_path / "a" / "b", URL, refuse) as data:
        assert data.logs.is_dir()
        assert data.nats.is_dir()


def test_can_be_held_again_once_it_was_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        with datadir.held(tmp_path, URL, refuse):
            pass


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with running(HOLD, tmp_path, "held") as first:
        with pytest.raises(UpError) as refused, datadir.held(tmp_path, "http://other", refuse):
            pass
        assert f"process {first.pid}" in str(refused.value)
        assert URL in str(refused.value)
        assert "--data-dir" in str(refused.value)


def test_waits_for_what_a_killed_holder_left_behind(tmp_path: Path) -> None:
    with running(LEFTOVER, tmp_path, "orphaned") as process:
        assert process.stdin is not None
        told: list[str] = []

        def let_go(text: str) -> None:
            told.append(text)
            process.stdin.close()  # type: ignore[union-attr]

        with datadir.held(tmp_path, URL, let_go):
            pass
    assert "still stopping" in told[0]


def test_says_so_when_what_was_left_behind_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datadir, "LEFTOVERS_S", 0.3)
    with (
        running(LEFTOVER, tmp_path, "orphaned"),
        pytest.raises(UpError, match="end them first"),
        datadir.held(tmp_path, URL, print),
    ):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UpError, match="can't be used"), datadir.held(tmp_path / "file", URL, refuse):
        pass


def test_the_default_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert datadir.default_data_dir() == Path("/somewhere/parrot")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert datadir.default_data_dir() == Path.home() / ".local" / "share" / "parrot"


def test_root_keeps_its_data_where_postgres_can_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert datadir.default_data_dir() == Path("/var/lib/parrot")
