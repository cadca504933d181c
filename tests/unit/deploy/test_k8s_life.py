"""Pods are started, probed, read by Prometheus, replaced and told to stop as their services need it."""

from __future__ import annotations

import pytest
from tests.unit.deploy.manifests import (
    OVERLAYS,
    Object,
    Workload,
    each_workload,
    environment,
    objects,
    workloads,
)

from parrot_gateway.settings import GatewaySettings

SERVING = [pytest.param(found, id=name) for name, found in each_workload() if found.serves]
OURS = [
    pytest.param(overlay, found, id=f"{overlay}-{found.item['metadata']['name']}")
    for overlay in OVERLAYS
    for found in workloads(objects(overlay))
    if found.serves and found.name in {"gateway", "manager", "engine"}
]
each_serving = pytest.mark.parametrize("workload", SERVING)
each_of_ours = pytest.mark.parametrize(("overlay", "workload"), OURS)


@each_serving
def test_a_process_is_not_ended_because_another_is_away(workload: Workload) -> None:
    # Readiness may depend on others. Liveness that does ends everything at once when Postgres is away.
    for container in workload.containers:
        probe = container["livenessProbe"]
        assert "grpc" not in probe
        path = probe.get("httpGet", {}).get("path", "/healthz")
        assert path.partition("?")[0] in {"/healthz", "/-/healthy"}


@each_of_ours
def test_services_are_asked_at_their_monitor(overlay: str, workload: Workload) -> None:
    (container,) = workload.containers
    assert monitor_port(overlay, workload) == named_ports(container)["monitor"]
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "monitor"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gateways_stay_among_those_that_serve_while_sessions_are_taken_over(overlay: str) -> None:
    (gateway,) = [found for found in workloads(objects(overlay)) if found.name == "gateway"]
    probe = gateway.containers[0]["readinessProbe"]
    waits_s = GatewaySettings.model_fields["takeover_wait_s"].default
    assert probe["periodSeconds"] * probe["failureThreshold"] > waits_s


@each_of_ours
def test_an_engine_has_half_an_hour_for_its_model_and_others_two_minutes(
    overlay: str, workload: Workload
) -> None:
    probe = workload.containers[0]["startupProbe"]
    # An engine that has started has its model; of the others it is the process alone that is waited for.
    path, least_s = ("/readyz", 1800) if workload.name == "engine" else ("/healthz", 120)
    assert probe["httpGet"] == {"path": path, "port": "monitor"}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= least_s
    if workload.name == "engine":
        assert workload.item["spec"]["progressDeadlineSeconds"] > least_s


@each_of_ours
def test_prometheus_is_told_where_metrics_are(overlay: str, workload: Workload) -> None:
    assert workload.item["spec"]["template"]["metadata"]["annotations"].items() >= {
        ("prometheus.io/scrape", "true"),
        ("prometheus.io/port", str(monitor_port(overlay, workload))),
        ("prometheus.io/path", "/metrics"),
    }


@each_of_ours
def test_while_pods_are_replaced_one_at_least_serves(overlay: str, workload: Workload) -> None:
    steps = workload.item["spec"]["strategy"]["rollingUpdate"]
    # Where the number is an autoscaler's, it is two at least.
    assert workload.item["spec"].get("replicas", 2) - steps["maxUnavailable"] >= 1


@each_of_ours
def test_a_pod_waits_for_the_others_longer_than_they_take_to_come(overlay: str, workload: Workload) -> None:
    # A pod that gave up first would be started again after ever longer pauses.
    told = environment(workload.containers[0], objects(overlay))
    assert float(told["PARROT_CONNECT_TIMEOUT_S"]) >= 300


def test_gpus_are_not_asked_for_twice_while_engines_are_replaced() -> None:
    for engine in [found for found in workloads(objects("gpu")) if found.name == "engine"]:
        assert engine.item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_full_node_gives_up_an_engine_before_what_holds_engines_together(overlay: str) -> None:
    found = objects(overlay)
    values = {item["metadata"]["name"]: item["value"] for item in found if item["kind"] == "PriorityClass"}
    of = {one.name: values[one.pod["priorityClassName"]] for one in workloads(found)}
    assert {name for name, value in of.items() if value == min(of.values())} == {"engine"}
    assert len(set(of.values())) == 2


@each_of_ours
def test_replacements_are_spread_over_hosts_and_zones_by_themselves(overlay: str, workload: Workload) -> None:
    constraints = workload.pod["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in constraints] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    # Counted with those that are about to go, the new ones would gather where the old are not.
    assert all(one["matchLabelKeys"] == ["pod-template-hash"] for one in constraints)


def monitor_port(overlay: str, workload: Workload) -> int:
    """Where a service serves its metrics, by its own settings."""
    told = environment(workload.containers[0], objects(overlay))
    host, _, port = told["PARROT_METRICS_ADDRESS"].rpartition(":")
    assert host == "0.0.0.0"  # noqa: S104
    return int(port)


def named_ports(container: Object) -> dict[str, int]:
    """A container's ports, by name."""
    return {port["name"]: port["containerPort"] for port in container["ports"]}
