"""Where NATS is, and how many servers keep what is written: bad settings end the start, and say why."""

from __future__ import annotations

import pytest

from parrot_runtime.settings import ServiceSettings

CLUSTER = "nats://nats-0.nats:4222,tls://somebody:secret@nats-1.nats:4222, nats://[::1]:4222"


def test_a_cluster_is_named_by_all_its_servers() -> None:
    settings = ServiceSettings.load(["--nats-url", CLUSTER, "--stream-replicas", "3"])
    assert settings.nats_url == CLUSTER
    assert settings.stream_replicas == 3


@pytest.mark.parametrize(
    ("urls", "number"),
    [
        ("", 1),
        ("nats:4222", 1),
        ("http://nats:4222", 1),
        ("nats://", 1),
        ("nats://a:4222,", 2),
        ("nats://a:4222,b:secret@c:4222", 2),
    ],
)
def test_what_is_no_url_of_a_server_is_refused_and_not_repeated(
    urls: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ServiceSettings.load(["--nats-url", urls])
    told = capsys.readouterr().err
    assert f"--nats-url (PARROT_NATS_URL): Value error, URL {number} is not one of a NATS server" in told
    assert "secret" not in told


@pytest.mark.parametrize("replicas", ["0", "6", "two"])
def test_replicas_are_one_to_five(replicas: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ServiceSettings.load(["--stream-replicas", replicas])
    assert "--stream-replicas (PARROT_STREAM_REPLICAS)" in capsys.readouterr().err
