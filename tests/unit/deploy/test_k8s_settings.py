"""Every container of ours is started as its service can be: with settings that it knows and takes."""

from __future__ import annotations

import os

import pytest
from tests.unit.deploy.manifests import (
    OVERLAYS,
    Object,
    Workload,
    environment,
    objects,
    of_kind,
    reaches,
    selects,
    workloads,
)

from parrot_engine.servicer.link import GOODBYE_S
from parrot_engine.settings import EngineSettings
from parrot_gateway.settings import GatewaySettings
from parrot_manager import main as manager_main
from parrot_manager import shell
from parrot_manager.settings import ManagerSettings
from parrot_runtime.rpc import addresses_of
from parrot_runtime.settings import ServiceSettings
from parrot_runtime.values import bus

CLASSES: dict[str, type[ServiceSettings]] = {
    "parrot-gateway": GatewaySettings,
    "parrot-manager": ManagerSettings,
    "parrot-engine": EngineSettings,
}
BEYOND_S = {
    # What is still written to the bus.
    "parrot-gateway": bus.FLUSH_S,
    "parrot-engine": GOODBYE_S + bus.FLUSH_S,
    # Commits that are under way, then sessions that go to the others.
    "parrot-manager": shell.FLUSH_S + shell.HAND_OVER_S + manager_main.GRACE_S + bus.FLUSH_S,
}
"""What a service may take to stop behind its drain, when others are slow or away."""
SLACK_S = 2
"""To end a process."""
OURS = [
    pytest.param(overlay, found, container, id=f"{overlay}-{found.name}")
    for overlay in OVERLAYS
    for found in workloads(objects(overlay))
    for container in found.containers
    if container.get("command", [""])[0] in CLASSES
]
each = pytest.mark.parametrize(("overlay", "workload", "container"), OURS)


@each
def test_every_variable_is_a_setting_of_the_service(
    overlay: str, workload: Workload, container: Object
) -> None:
    known = {f"PARROT_{name.upper()}" for name in CLASSES[container["command"][0]].model_fields}
    given = {name for name in environment(container, objects(overlay)) if name.startswith("PARROT_")}
    assert given <= known


@each
def test_the_service_takes_its_command_line_and_environment(
    overlay: str, workload: Workload, container: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(overlay, container, monkeypatch)
    for name, value in environment(container, objects(overlay)).items():
        if name.startswith("PARROT_"):
            taken = str(getattr(settings, name.removeprefix("PARROT_").lower()))
            assert taken.lower() in {value.lower(), f"{value}.0"}


@each
def test_a_pod_is_given_the_time_its_service_takes_to_stop(
    overlay: str, workload: Workload, container: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(overlay, container, monkeypatch)
    takes = getattr(settings, "drain_s", 0) or getattr(settings, "stop_s", 0)
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    beyond = BEYOND_S[container["command"][0]]
    if workload.serves:
        assert workload.pod["terminationGracePeriodSeconds"] >= before + takes + beyond + SLACK_S


@each
def test_every_address_it_is_told_is_a_service_that_it_may_reach(
    overlay: str, workload: Workload, container: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(overlay, container, monkeypatch)
    found = objects(overlay)
    addresses = addresses_of(getattr(settings, "manager_address", ""))
    if workload.serves:
        addresses += [url.partition("://")[2] for url in settings.nats_url.split(",")]
    for address in addresses:
        target, port = pods_behind(found, address)
        assert reaches(found, workload.labels, target.labels, port), address


def test_the_gateway_asks_for_keys_in_every_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    for overlay in OVERLAYS:
        (gateway,) = [found for found in workloads(objects(overlay)) if found.name == "gateway"]
        settings = loaded(overlay, gateway.containers[0], monkeypatch)
        assert isinstance(settings, GatewaySettings)
        assert settings.keys


def test_a_model_is_shared_by_as_many_gpus_as_its_pod_has(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [found for found in workloads(objects("gpu")) if found.name == "engine"]
    assert engines
    for engine in engines:
        (container,) = engine.containers
        settings = loaded("gpu", container, monkeypatch)
        assert isinstance(settings, EngineSettings)
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == settings.tensor_parallel_size
        assert container["image"].startswith("parrot/engine-gpu:")
        assert engine.pod["nodeSelector"]
        assert engine.pod["tolerations"]


def test_engines_of_two_models_are_never_taken_for_each_other() -> None:
    for engine in [found for found in workloads(objects("gpu")) if found.name == "engine"]:
        selector = engine.item["spec"]["selector"]["matchLabels"]
        assert selector["parrot/model"] == engine.item["metadata"]["name"].removeprefix("engine-")


def loaded(overlay: str, container: Object, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """The settings that the container's process would read."""
    for name in [name for name in os.environ if name.startswith("PARROT_")]:
        monkeypatch.delenv(name)
    for name, value in environment(container, objects(overlay)).items():
        if name.startswith("PARROT_"):
            monkeypatch.setenv(name, value)
    return CLASSES[container["command"][0]].load(container.get("args", []))


def replicas(target: Workload) -> int:
    """How many pods a stateful set has."""
    return int(target.item["spec"]["replicas"])


def pods_behind(found: list[Object], address: str) -> tuple[Workload, int]:
    """The workload and the container's port that an address of a service, or of a pod behind it, leads to."""
    host, _, port = address.rpartition(":")
    pod, _, name = host.rpartition(".")
    (service,) = [item for item in of_kind(found, "Service") if item["metadata"]["name"] == name]
    (entry,) = [item for item in service["spec"]["ports"] if item["port"] == int(port)]
    (target,) = [
        one for one in workloads(found) if selects({"matchLabels": service["spec"]["selector"]}, one.labels)
    ]
    if pod:
        assert target.item["spec"]["serviceName"] == name
        assert pod in {f"{target.item['metadata']['name']}-{number}" for number in range(replicas(target))}
    ports = {item["name"]: item["containerPort"] for item in target.containers[0]["ports"]}
    return target, int(ports[entry["targetPort"]])
