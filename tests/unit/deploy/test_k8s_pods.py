"""Pods of the manifests can do no more than they need, and are looked after."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from tests.unit.deploy.manifests import OVERLAYS, ROOT, Workload, each_workload, objects, of_kind, workloads

ALL = [pytest.param(found, id=name) for name, found in each_workload()]
SERVING = [pytest.param(found, id=name) for name, found in each_workload() if found.serves]
each = pytest.mark.parametrize("workload", ALL)
each_serving = pytest.mark.parametrize("workload", SERVING)


@each
def test_no_pod_has_rights_on_its_node_or_in_the_cluster(workload: Workload) -> None:
    pod = workload.pod
    about = pod["securityContext"]
    assert about["runAsNonRoot"]
    assert about["runAsUser"] > 0
    assert about["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all("hostPath" not in volume for volume in pod.get("volumes", []))


@each
def test_no_container_gains_privileges_or_writes_its_root(workload: Workload) -> None:
    for container in workload.containers:
        about = container["securityContext"]
        assert about["allowPrivilegeEscalation"] is False
        assert about["readOnlyRootFilesystem"] is True
        assert about["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in about


@each
def test_every_pod_runs_as_an_account_that_has_no_token(workload: Workload) -> None:
    for overlay in OVERLAYS:
        accounts = of_kind(objects(overlay), "ServiceAccount")
        names = {item["metadata"]["name"] for item in accounts}
        assert all(item["automountServiceAccountToken"] is False for item in accounts)
        if workload.item in of_kind(objects(overlay), workload.item["kind"]):
            assert workload.pod["serviceAccountName"] in names


@each
def test_kubernetes_adds_no_setting_of_its_own(workload: Workload) -> None:
    # It would give each pod <NAME>_PORT of every service: one named `parrot` would set PARROT_PORT.
    assert workload.pod["enableServiceLinks"] is False


@each
def test_memory_is_bounded_and_what_is_needed_is_asked_for(workload: Workload) -> None:
    for container in workload.containers:
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert "memory" in resources["limits"]
    for volume in workload.pod.get("volumes", []):
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], volume


@each
def test_images_are_named_with_a_whole_version(workload: Workload) -> None:
    for container in workload.containers:
        name, _, tag = container["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?([-.].+)?", tag), container["image"]
        if name.startswith("parrot/"):
            assert tag == version()


def test_the_migrations_job_is_another_for_another_version() -> None:
    for overlay in OVERLAYS:
        (job,) = of_kind(objects(overlay), "Job")
        assert job["metadata"]["name"] == f"migrate-{version().replace('.', '-')}"


@each_serving
def test_every_container_that_serves_has_all_probes(workload: Workload) -> None:
    for container in workload.containers:
        ports = {port["name"] for port in container["ports"]} | {
            port["containerPort"] for port in container["ports"]
        }
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert probe_ports(container[probe]) <= ports, probe


@each_serving
def test_a_process_is_not_ended_because_another_is_away(workload: Workload) -> None:
    # Readiness may depend on others. Liveness that does ends everything at once when Postgres is away.
    for container in workload.containers:
        probe = container["livenessProbe"]
        assert "grpc" not in probe
        path = probe.get("httpGet", {}).get("path", "/healthz")
        assert path.partition("?")[0] == "/healthz"


@each_serving
def test_what_has_several_pods_keeps_one_through_a_drain_of_nodes(workload: Workload) -> None:
    if workload.item["spec"].get("replicas", 2) == 1:
        return
    overlay = next(name for name in OVERLAYS if any(workload == one for one in workloads(objects(name))))
    budgets = [
        item["spec"]
        for item in of_kind(objects(overlay), "PodDisruptionBudget")
        if item["spec"]["selector"]["matchLabels"].items() <= workload.labels.items()
    ]
    assert len(budgets) == 1
    assert budgets[0].get("minAvailable", budgets[0].get("maxUnavailable")) == 1
    assert workload.pod["topologySpreadConstraints"]


def probe_ports(probe: dict[str, Any]) -> set[Any]:
    """The ports that a probe asks; none when it runs a command."""
    found = {probe[kind]["port"] for kind in ("httpGet", "tcpSocket", "grpc") if kind in probe}
    assert found or probe["exec"]["command"]
    return found


def version() -> str:
    """This version of Parrot."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
