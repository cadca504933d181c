"""The NATS servers of every overlay know each other, keep what they take, and never go two at a time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.unit.deploy.manifests import OVERLAYS, Object, Workload, environment, objects, of_kind, workloads

from parrot_cli.nats_server import binary

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@each_overlay
def test_the_server_takes_its_configuration(overlay: str, tmp_path: Path) -> None:
    Authority(tmp_path).issue("nats", as_file="tls").ca.rename(tmp_path / "ca.crt")
    for file, text in configurations(overlay).items():
        (tmp_path / file).write_text(text.replace("/etc/parrot/tls", str(tmp_path)))
    path = tmp_path / "nats.conf"
    done = subprocess.run(
        [str(binary()), "-t", "-c", str(path)],
        check=False,
        capture_output=True,
        text=True,
        env={"POD_NAME": "nats-0"},
    )
    assert done.returncode == 0, done.stderr


@each_overlay
def test_every_server_is_named_to_its_peers_and_to_every_service(overlay: str) -> None:
    spec = nats(overlay).item["spec"]
    names = {f"nats-{number}.{spec['serviceName']}" for number in range(spec["replicas"])}
    routes = set(re.findall(r"nats://(\S+):6222", configuration(overlay)))
    assert routes == (names if len(names) > 1 else set())
    for one in workloads(objects(overlay)):
        for container in one.containers:
            told = environment(container, objects(overlay)).get("PARROT_NATS_URL", "")
            assert not told or {url.partition("://")[2] for url in told.split(",")} == {
                f"{name}:4222" for name in names
            }


@each_overlay
def test_as_many_servers_keep_a_message_as_there_are(overlay: str) -> None:
    for one in workloads(objects(overlay)):
        told = environment(one.containers[0], objects(overlay)).get("PARROT_STREAM_REPLICAS")
        assert told is None or int(told) == nats(overlay).item["spec"]["replicas"]


@each_overlay
def test_one_server_goes_at_a_time_and_no_two_share_a_node(overlay: str) -> None:
    found = nats(overlay)
    (budget,) = [
        item["spec"] for item in of_kind(objects(overlay), "PodDisruptionBudget") if name(item) == "nats"
    ]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= found.labels.items()
    (by_node,) = [
        one
        for one in found.pod["topologySpreadConstraints"]
        if one["topologyKey"] == "kubernetes.io/hostname"
    ]
    assert by_node["whenUnsatisfiable"] == "DoNotSchedule"
    assert found.item["spec"]["podManagementPolicy"] == "Parallel"


@each_overlay
def test_a_server_has_caught_up_before_the_next_one_goes_and_is_not_restarted_for_its_peers(
    overlay: str,
) -> None:
    (container,) = nats(overlay).containers
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz?js-server-only=true"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz?js-enabled-only=true"


@each_overlay
def test_a_server_told_to_go_is_given_the_time_that_takes(overlay: str) -> None:
    found = nats(overlay)
    text = configuration(overlay)
    takes_s = sum(
        int(re.findall(rf"lame_duck_{name}: (\d+)s", text)[0]) for name in ("duration", "grace_period")
    )
    assert found.pod["terminationGracePeriodSeconds"] >= takes_s + 10
    command = found.containers[0]["lifecycle"]["preStop"]["exec"]["command"]
    (pid_file,) = re.findall(r"pid_file: (\S+)", text)
    assert command == ["nats-server", "--signal", f"ldm={pid_file}"]
    mounts = {one["mountPath"] for one in found.containers[0]["volumeMounts"]}
    assert str(Path(pid_file).parent) in mounts


def nats(overlay: str) -> Workload:
    """The servers' stateful set."""
    (found,) = [one for one in workloads(objects(overlay)) if one.name == "nats"]
    return found


def name(item: Object) -> str:
    """An object's name."""
    return str(item["metadata"]["name"])


def configuration(overlay: str) -> str:
    """What the servers read first."""
    return configurations(overlay)["nats.conf"]


def configurations(overlay: str) -> dict[str, str]:
    """The files that the servers read."""
    (wanted,) = [one["configMap"]["name"] for one in nats(overlay).pod["volumes"] if one["name"] == "config"]
    (found,) = [item for item in of_kind(objects(overlay), "ConfigMap") if name(item) == wanted]
    return dict(found["data"])
