"""The set-up finds out itself what is left to do, and says what it can't do."""

from __future__ import annotations

import socket
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from tools import setup_env


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    for name, path in (("VENV", "."), ("STAMP", "stamp"), ("LOG", "log"), ("PYTHON", "bin/python")):
        monkeypatch.setattr(setup_env, name, folder / path)
    return folder


def test_nothing_is_done_twice(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def set_up() -> None:
        done.append(1)
        (venv / "stamp").write_text(setup_env.key())

    monkeypatch.setattr(setup_env, "set_up", set_up)
    assert [setup_env.main(), setup_env.main()] == [0, 0]
    assert done == [1]


def test_a_changed_project_is_set_up_again(
    venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (venv / "stamp").write_text(setup_env.key())
    assert setup_env.is_current()
    (tmp_path / "pyproject.toml").write_text("changed")
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    assert not setup_env.is_current()


def test_a_moved_environment_is_set_up_again(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = setup_env.key()
    monkeypatch.setattr(setup_env, "VENV", venv.parent / "elsewhere")
    assert setup_env.key() != before


def test_packages_cut_off_while_installing_are_forgotten(venv: Path) -> None:
    site = venv / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.dist-info", "torn-1.dist-info", "~orn-1.dist-info"):
        (site / name).mkdir(parents=True)
        (site / name / "METADATA").write_text("")
    (site / "whole-1.dist-info" / "RECORD").write_text("")
    setup_env.remove_torn_packages()
    assert [folder.name for folder in site.iterdir()] == ["whole-1.dist-info"]


def test_vllm_gets_what_it_requires_but_what_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "subprocess.check_output",
        lambda *_, **__: (
            '["torch==2.13.0", "torchaudio>=1; sys_platform != \'x\'", "torchcodec", "torchvision[a]",'
            ' "torch-geometric", "numpy", "ray>=2; extra == \'ray\'"]'
        ),
    )
    assert setup_env.vllm_requirements() == ["torch-geometric", "numpy"]


def test_the_package_with_the_model_comes_without_the_engine_it_wants(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(setup_env, "step", lambda _, command: commands.append(command))
    monkeypatch.setattr(setup_env, "vllm_requirements", list)
    for name in ("make_venv", "install_torch"):
        monkeypatch.setattr(setup_env, name, lambda: None)
    setup_env.set_up()
    named = [command for command in commands if setup_env.MODEL in command]
    assert [command[-2:] for command in named] == [["--no-deps", setup_env.MODEL]]
    extras = tomllib.loads((setup_env.ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert not any(line.startswith(setup_env.MODEL) for lines in extras.values() for line in lines)
    assert setup_env.is_current()


def test_an_index_that_never_answers_costs_no_more_than_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "PROBE_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not setup_env.reachable(f"http://127.0.0.1:{silent.getsockname()[1]}/")


def test_an_index_that_answers_anything_is_reachable() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            peer, _ = server.accept()
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert setup_env.reachable(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()


def test_without_torch_it_says_what_to_do(
    venv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_env, "run", lambda *_: (1, "ERROR: No matching distribution found for torch"))
    monkeypatch.setattr(setup_env, "reachable", lambda _: False)
    with pytest.raises(SystemExit):
        setup_env.install_torch()
    assert "PIP_FIND_LINKS=" in capsys.readouterr().err


def test_a_step_that_fails_shows_what_it_said(venv: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        setup_env.step("the step", [sys.executable, "-c", "print('disk full'); raise SystemExit(7)"])
    out, err = capfd.readouterr()
    assert "the step: exit 7" in out
    assert "disk full" in err
    assert str(venv / "log") in err
    assert (venv / "log").read_text() == "disk full\n"
