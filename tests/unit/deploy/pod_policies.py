"""What is asked of every pod and container: kube-linter's checks, by its names for them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.unit.deploy.manifests import Object, Workload, selects, workloads

PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
HOSTS: Final = "kubernetes.io/hostname"
WHOLE_VERSION: Final = re.compile(r"[^:]+:v?\d+\.\d+(\.\d+)?([-.].+)?")
SECRET: Final = re.compile(r"(?i)secret|password|postgres_url|token$")


def _memory_is_bounded(container: Object) -> object:
    resources = container["resources"]
    return resources["requests"].get("memory") and resources["limits"].get("memory")


def _is_set_once(container: Object) -> bool:
    names = Counter(entry["name"] for entry in container.get("env", []))
    return max(names.values(), default=1) == 1


def _tells_no_secret(container: Object) -> bool:
    plain = [entry["name"] for entry in container.get("env", []) if entry.get("value")]
    return not any(SECRET.search(name) for name in plain)


def _asks_an_open_port(container: Object, probe: str) -> bool:
    ports = container.get("ports", [])
    names = {port["name"] for port in ports} | {port["containerPort"] for port in ports}
    asked = container.get(probe, {})
    return all(asked[way]["port"] in names for way in ("httpGet", "tcpSocket", "grpc") if way in asked)


CONTAINERS: Final[Mapping[str, Callable[[Object], object]]] = {
    "drop-net-raw-capability": lambda one: one["securityContext"].get("capabilities") == {"drop": ["ALL"]},
    "privilege-escalation-container": lambda one: (
        one["securityContext"].get("allowPrivilegeEscalation") is False
    ),
    "privileged-container": lambda one: not one["securityContext"].get("privileged"),
    "unsafe-proc-mount": lambda one: one["securityContext"].get("procMount", "Default") == "Default",
    "no-read-only-root-fs": lambda one: one["securityContext"].get("readOnlyRootFilesystem"),
    "latest-tag": lambda one: WHOLE_VERSION.fullmatch(one["image"]),
    "unset-cpu-requirements": lambda one: one["resources"]["requests"].get("cpu"),
    "unset-memory-requirements": _memory_is_bounded,
    "duplicate-env-var": _is_set_once,
    "env-var-secret": _tells_no_secret,
    "ssh-port, privileged-ports": lambda one: all(
        port["containerPort"] >= 1024 for port in one.get("ports", [])
    ),
    "liveness-port": lambda one: _asks_an_open_port(one, "livenessProbe"),
    "readiness-port": lambda one: _asks_an_open_port(one, "readinessProbe"),
    "startup-port": lambda one: _asks_an_open_port(one, "startupProbe"),
}
"""Whether a container is as it must be."""


def _is_not_root(one: Workload) -> object:
    about = one.pod["securityContext"]
    return about.get("runAsNonRoot") and about.get("runAsUser") and about.get("runAsGroup")


def _is_probed(one: Workload) -> bool:
    return not one.serves or all(set(PROBES) <= set(container) for container in one.pod["containers"])


def _rolls(one: Workload) -> bool:
    if one.item["kind"] != "Deployment":
        return True
    steps = one.item["spec"]["strategy"]["rollingUpdate"]
    return bool(steps["maxSurge"] + steps["maxUnavailable"] >= 1)


def _is_spread_over_hosts(one: Workload) -> bool:
    if not one.serves or one.item["spec"].get("replicas", 2) < 2:
        return True
    return spread_over(one, HOSTS)


PODS: Final[Mapping[str, Callable[[Workload], object]]] = {
    "host-ipc, host-network, host-pid": lambda one: not {"hostIPC", "hostNetwork", "hostPID"} & set(one.pod),
    "docker-sock, sensitive-host-mounts, writable-host-mount": lambda one: all(
        "hostPath" not in volume for volume in one.pod.get("volumes", [])
    ),
    "run-as-non-root": _is_not_root,
    "unsafe-sysctls": lambda one: not one.pod["securityContext"].get("sysctls"),
    "deprecated-service-account-field": lambda one: "serviceAccount" not in one.pod,
    "mismatching-selector": lambda one: not one.serves or selects(one.item["spec"]["selector"], one.labels),
    "no-liveness-probe, no-readiness-probe": _is_probed,
    "no-anti-affinity": _is_spread_over_hosts,
    "no-rolling-update-strategy": _rolls,
    "job-ttl-seconds-after-finished": lambda one: (
        one.serves or one.item["spec"].get("ttlSecondsAfterFinished")
    ),
}
"""Whether a workload's pods are as they must be."""


def complaints(check: str, found: list[Object]) -> Iterator[str]:
    """The pods that are not as a check wants them."""
    for one in workloads(found):
        if check in PODS:
            well = bool(PODS[check](one))
        else:
            well = all(CONTAINERS[check](container) for container in one.containers)
        if not well:
            yield f"{one.item['metadata']['name']}: {check}"


def spread_over(one: Workload, topology: str) -> bool:
    """Whether a workload's pods keep apart, by spread constraints or by affinity."""
    about = one.pod.get("affinity", {}).get("podAntiAffinity", {})
    preferred = about.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    terms = [
        *about.get("requiredDuringSchedulingIgnoredDuringExecution", []),
        *(item["podAffinityTerm"] for item in preferred),
        *one.pod.get("topologySpreadConstraints", []),
    ]
    return any(
        term["topologyKey"] == topology and selects(term["labelSelector"], one.labels) for term in terms
    )
