"""The manifests are rendered as they stand, Kubernetes would take them, and they open no way too many."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.deploy.manifests import (
    K8S,
    NAME,
    OVERLAYS,
    ROOT,
    objects,
    of_kind,
    reaches,
    selects,
    workloads,
)

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
WAYS = {
    ("gateway", "manager", 7400),
    ("gateway", "nats", 4222),
    ("engine", "manager", 7400),
    ("engine", "nats", 4222),
    ("manager", "nats", 4222),
    ("nats", "nats", 6222),
    ("manager", "postgres", 5432),
    ("migrate", "postgres", 5432),
}
"""All that pods open to one another. Postgres may also be outside."""
PORTS = (
    ("gateway", 8080),
    ("manager", 7400),
    ("nats", 4222),
    ("nats", 6222),
    ("postgres", 5432),
    ("gateway", 9402),
    ("manager", 9401),
    ("engine", 9400),
    ("prometheus", 9090),
)
READS = {("prometheus", "gateway", 9402), ("prometheus", "manager", 9401), ("prometheus", "engine", 9400)}
"""What else is open where there is a Prometheus among them."""


def test_what_is_rendered_is_current() -> None:
    command = [sys.executable, str(K8S / "render.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("base/nats.conf", OVERLAYS),
        ("../deploy/observe/rules/alerts.yml", OVERLAYS),
        ("rendered/dev.yaml", ("dev",)),
    ],
)
def test_a_change_of_the_sources_or_of_what_was_made_is_found_without_kubectl(
    changed: str, stale: tuple[str, ...], tmp_path: Path
) -> None:
    copy = tmp_path / "k8s"
    shutil.copytree(K8S, copy)
    for part in ("nats", "observe"):
        shutil.copytree(ROOT / "deploy" / part, tmp_path / "deploy" / part)
    with (copy / changed).open("a") as file:
        file.write("# changed\n")
    command = [sys.executable, str(copy / "render.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": ""})
    assert done.returncode == 1
    assert {name for name in OVERLAYS if f"{name}.yaml is stale" in done.stderr} == set(stale)


@each_overlay
def test_everything_is_in_the_namespace_that_holds_pods_to_the_restricted_standard(overlay: str) -> None:
    found = objects(overlay)
    (namespace,) = of_kind(found, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for item in found:
        if item["kind"] not in {"Namespace", "PriorityClass"}:
            assert item["metadata"]["namespace"] == namespace["metadata"]["name"]


@each_overlay
def test_all_that_is_not_named_is_denied_both_ways(overlay: str) -> None:
    closed = [
        spec
        for spec in (item["spec"] for item in of_kind(objects(overlay), "NetworkPolicy"))
        if spec["podSelector"] == {} and set(spec["policyTypes"]) == {"Ingress", "Egress"}
    ]
    assert len(closed) == 1
    assert set(closed[0]) == {"podSelector", "policyTypes"}


@each_overlay
def test_pods_reach_one_another_where_they_must_and_nowhere_else(overlay: str) -> None:
    found = objects(overlay)
    pods = {one.name: one.labels for one in workloads(found)}
    # The front door is open to all; that a pod of ours could knock there too gives it nothing.
    open_ways = {
        (source, target, port)
        for source in pods
        for target, port in PORTS
        if target in pods and reaches(found, pods[source], pods[target], port)
    }
    assert open_ways == {way for way in WAYS | READS if {way[0], way[1]} <= set(pods)}


@each_overlay
def test_a_stranger_reaches_the_front_door_alone(overlay: str) -> None:
    found = objects(overlay)
    stranger = {NAME: "stranger"}
    doors = {
        one.name
        for one in workloads(found)
        for policy in (item["spec"] for item in of_kind(found, "NetworkPolicy"))
        if selects(policy["podSelector"], one.labels)
        for rule in policy.get("ingress", [])
        if "from" not in rule
        or any("podSelector" in peer and selects(peer["podSelector"], stranger) for peer in rule["from"])
    }
    assert doors == {"gateway"}


def test_secrets_are_by_reference_where_it_matters() -> None:
    assert of_kind(objects("gpu"), "Secret") == []
    for overlay in OVERLAYS:
        for one in workloads(objects(overlay)):
            for container in one.containers:
                plain = [entry["name"] for entry in container.get("env", []) if "value" in entry]
                assert not {"PARROT_POSTGRES_URL", "POSTGRES_PASSWORD"} & set(plain)
