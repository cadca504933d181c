"""What can't work is found before anything is started."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest

from parrot_cli.errors import UpError
from parrot_cli.options import Backend, UpOptions, free_port
from parrot_cli.report import Report


def options(port: int = 0, **changes: object) -> UpOptions:
    made = UpOptions(data_dir=Path("/unused"), backend=Backend.SIM, port=port or free_port())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_a_free_port_and_the_packaged_model_are_fine() -> None:
    options().check()
    options(backend=Backend.VLLM).check()


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UpError, match=rf"127\.0\.0\.1:{port} .*--port"):
            options(port).check()


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UpError, match=r"can't listen on 203\.0\.113\.1:"):
        options(host="203.0.113.1", keys=True).check()


@pytest.mark.parametrize("host", ["203.0.113.1", "0.0.0.0", ""])  # noqa: S104 - refused
def test_others_are_not_let_in_without_keys(host: str) -> None:
    with pytest.raises(UpError, match=r"no keys are asked for: add --keys"):
        options(host=host).check()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpError, match=r"--model .*config\.json"):
        options(backend=Backend.VLLM, model=str(tmp_path)).check()
    (tmp_path / "config.json").write_text("{}")
    options(backend=Backend.VLLM, model=str(tmp_path)).check()


def test_engines_are_numbered_from_one() -> None:
    assert options(engines=2).engine_ids == ["e-1", "e-2"]
    assert options(engines=0).engine_ids == []


def test_the_gateway_is_monitored_first_then_managers_then_engines() -> None:
    made = options(metrics_port=9500, managers=2, engines=1, sandbox=True)
    named = ["gateway", *made.manager_ids, *made.engine_ids]
    assert [made.monitor(name) for name in named] == [f"127.0.0.1:{9500 + n}" for n in range(5)]
    assert options().monitor("gateway") == ""


def test_a_port_for_metrics_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UpError, match=rf"127\.0\.0\.1:{port} .*another --metrics-port"):
            options(metrics_port=port).check()


def test_ports_for_metrics_that_are_none_are_refused() -> None:
    with pytest.raises(UpError, match=r"--metrics-port 65535: 3 services need .*choose a lower one"):
        options(metrics_port=65_535).check()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")],  # noqa: S104
)
def test_the_url_is_one_that_a_client_can_use(host: str, url: str) -> None:
    assert options(80, host=host).url == url


def test_events_for_programs_are_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(as_json=True)
    report.event("ready", "  nats ready\nin time", component="nats", seconds=0.1)
    report.progress("engine e-1: loading")
    report.event("refused", "no", is_error=True)
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["ready", "progress", "refused"]
    assert events[0] == {
        "event": "ready",
        "text": "  nats ready\nin time",
        "component": "nats",
        "seconds": 0.1,
    }
    assert err == ""


def test_people_get_errors_on_stderr_and_progress_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(as_json=False)
    report.event("ready", "nats ready")
    report.progress("loading (1 s)")
    report.progress("loading (5 s)", every_s=0)
    report.event("refused", "no", is_error=True)
    assert capsys.readouterr() == ("nats ready\nloading (5 s)\n", "no\n")
