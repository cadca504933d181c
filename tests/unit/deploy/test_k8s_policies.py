"""Every overlay, with and without each component, is what Kubernetes takes and what its linters ask for.

kube-linter's default checks are all here but `no-extensions-v1beta`: the schemas know no version that old.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.unit.deploy import object_policies, pod_policies
from tests.unit.deploy.manifests import Object, objects, of_kind
from tests.unit.deploy.schemas import ValidationError, validate
from tests.unit.deploy.variants import each_variant, variant_objects

CHECKS: Final = [*pod_policies.CONTAINERS, *pod_policies.PODS, *object_policies.CHECKS]


def complaints(check: str, found: list[Object]) -> Iterator[str]:
    """What a check finds wrong."""
    if check in object_policies.CHECKS:
        return object_policies.CHECKS[check](found)
    return pod_policies.complaints(check, found)


@each_variant
def test_the_schemas_have_every_field(variant: str) -> None:
    for item in variant_objects(variant):
        validate(item)


@each_variant
def test_all_is_as_linters_ask(variant: str) -> None:
    found = variant_objects(variant)
    assert [complaint for check in CHECKS for complaint in complaints(check, found)] == []


@each_variant
def test_every_object_is_there_once(variant: str) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in variant_objects(variant)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject"])
def test_the_schemas_find_a_field_that_is_none(kind: str) -> None:
    item = of_kind(objects("production"), kind)[0]
    validate(item)
    item["spec"]["scalTargetRef"] = {}
    with pytest.raises(ValidationError):
        validate(item)


POD: Final = "spec.template.spec"
CONTAINER: Final = f"{POD}.containers.0"
BREAKS: Final[dict[str, tuple[str, str, Any]]] = {
    # What of the gateway to set to what, so that the check must complain.
    "drop-net-raw-capability": (
        "Deployment",
        f"{CONTAINER}.securityContext.capabilities",
        {"drop": ["CHOWN"]},
    ),
    "privilege-escalation-container": (
        "Deployment",
        f"{CONTAINER}.securityContext.allowPrivilegeEscalation",
        True,
    ),
    "privileged-container": ("Deployment", f"{CONTAINER}.securityContext.privileged", True),
    "unsafe-proc-mount": ("Deployment", f"{CONTAINER}.securityContext.procMount", "Unmasked"),
    "no-read-only-root-fs": ("Deployment", f"{CONTAINER}.securityContext.readOnlyRootFilesystem", False),
    "latest-tag": ("Deployment", f"{CONTAINER}.image", "parrot/frontend:latest"),
    "unset-cpu-requirements": ("Deployment", f"{CONTAINER}.resources.requests", {"memory": "1Gi"}),
    "unset-memory-requirements": ("Deployment", f"{CONTAINER}.resources.limits", {"cpu": 1}),
    "duplicate-env-var": ("Deployment", f"{CONTAINER}.env", [{"name": "A"}, {"name": "A"}]),
    "env-var-secret": ("Deployment", f"{CONTAINER}.env", [{"name": "THE_SECRET", "value": "plain"}]),
    "ssh-port, privileged-ports": ("Deployment", f"{CONTAINER}.ports.0.containerPort", 22),
    "liveness-port": ("Deployment", f"{CONTAINER}.livenessProbe.httpGet.port", "another"),
    "readiness-port": ("Deployment", f"{CONTAINER}.readinessProbe.httpGet.port", 81),
    "startup-port": ("Deployment", f"{CONTAINER}.startupProbe", {"grpc": {"port": 81}}),
    "host-ipc, host-network, host-pid": ("Deployment", f"{POD}.hostPID", True),
    "docker-sock, sensitive-host-mounts, writable-host-mount": (
        "Deployment",
        f"{POD}.volumes",
        [{"name": "sock", "hostPath": {"path": "/var/run/docker.sock"}}],
    ),
    "run-as-non-root": ("Deployment", f"{POD}.securityContext.runAsUser", 0),
    "unsafe-sysctls": ("Deployment", f"{POD}.securityContext.sysctls", [{"name": "kernel.msgmax"}]),
    "deprecated-service-account-field": ("Deployment", f"{POD}.serviceAccount", "gateway"),
    "mismatching-selector": ("Deployment", "spec.selector.matchLabels", {"app": "another"}),
    "no-liveness-probe, no-readiness-probe": ("Deployment", CONTAINER, {"name": "bare"}),
    "no-anti-affinity": ("Deployment", f"{POD}.topologySpreadConstraints", []),
    "no-rolling-update-strategy": (
        "Deployment",
        "spec.strategy.rollingUpdate",
        {"maxSurge": 0, "maxUnavailable": 0},
    ),
    "job-ttl-seconds-after-finished": ("Deployment", "", {"kind": "Job"}),
    "dangling-service": ("Service", "spec.selector", {"app": "another"}),
    "invalid-target-ports": ("Service", "spec.ports.0.targetPort", "another"),
    "exposed-services": ("Service", "spec.type", "NodePort"),
    "non-existent-service-account, default-service-account": (
        "Deployment",
        f"{POD}.serviceAccountName",
        "default",
    ),
    "priority-class-name": ("Deployment", f"{POD}.priorityClassName", "another"),
    "pdb-max-unavailable, pdb-min-available": ("PodDisruptionBudget", "spec.minAvailable", 2),
    "pdb-unhealthy-pod-eviction-policy": ("PodDisruptionBudget", "spec", {"selector": {"matchLabels": {}}}),
    "dangling-horizontalpodautoscaler": ("HorizontalPodAutoscaler", "spec.scaleTargetRef.name", "another"),
    "dangling-networkpolicy, dangling-networkpolicypeer-podselector": (
        "NetworkPolicy",
        "spec.egress.0.to.0.podSelector.matchLabels",
        {"app": "another"},
    ),
    "non-isolated-pod": ("NetworkPolicy", "every", None),
    "use-namespace": ("Deployment", "metadata.namespace", "default"),
    "access-to-create-pods, access-to-secrets, cluster-admin-role-binding": (
        "ServiceAccount",
        "apiVersion",
        "rbac.authorization.k8s.io/v1",
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_finds_what_it_is_there_for(check: str) -> None:
    kind, path, value = BREAKS[check]
    found = objects("production")
    if path == "every":
        found = [item for item in found if item["kind"] != kind]
    else:
        (item,) = [one for one in of_kind(found, kind) if one["metadata"]["name"] == "gateway"]
        put(item, path, value)
    assert list(complaints(check, found))


def put(item: Any, path: str, value: Any) -> None:
    """Sets what is at a path, as `spec.ports.0.name`; with none, some fields of the whole."""
    *way, last = path.split(".")
    for name in way:
        item = item[int(name) if name.isdigit() else name]
    if not path:
        item.update(value)
    else:
        item[int(last) if last.isdigit() else last] = value
