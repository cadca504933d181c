"""Pods of the manifests can do no more than they need, and are looked after."""

from __future__ import annotations

import tomllib

import pytest
from tests.unit.deploy.manifests import OVERLAYS, ROOT, Workload, each_workload, objects, of_kind, workloads

ALL = [pytest.param(found, id=name) for name, found in each_workload()]
SERVING = [pytest.param(found, id=name) for name, found in each_workload() if found.serves]
each = pytest.mark.parametrize("workload", ALL)
each_serving = pytest.mark.parametrize("workload", SERVING)


@each
def test_every_pod_is_without_a_token_and_with_the_usual_filter_of_system_calls(workload: Workload) -> None:
    assert workload.pod["automountServiceAccountToken"] is False
    assert workload.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_account_has_a_token(overlay: str) -> None:
    for item in of_kind(objects(overlay), "ServiceAccount"):
        assert item["automountServiceAccountToken"] is False


@each
def test_what_is_built_here_is_of_this_version(workload: Workload) -> None:
    for container in workload.containers:
        name, _, tag = container["image"].partition(":")
        if name.startswith("parrot/"):
            assert tag == version()


@each
def test_kubernetes_adds_no_setting_of_its_own(workload: Workload) -> None:
    # It would give each pod <NAME>_PORT of every service: one named `parrot` would set PARROT_PORT.
    assert workload.pod["enableServiceLinks"] is False


@each
def test_what_a_pod_writes_beside_its_volumes_is_bounded(workload: Workload) -> None:
    for volume in workload.pod.get("volumes", []):
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], volume


def test_the_migrations_job_is_another_for_another_version() -> None:
    for overlay in OVERLAYS:
        (job,) = of_kind(objects(overlay), "Job")
        assert job["metadata"]["name"] == f"migrate-{version().replace('.', '-')}"


def test_nothing_of_the_migrations_job_changes_within_a_version() -> None:
    # Kubernetes refuses a Job that was changed, as by a name with a digest of what all services are told.
    for overlay in OVERLAYS:
        (job,) = of_kind(objects(overlay), "Job")
        for container in job["spec"]["template"]["spec"]["containers"]:
            assert "envFrom" not in container


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


def version() -> str:
    """This version of Parrot."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
