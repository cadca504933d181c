"""docker-compose.yml and the manifests start the same system: the same images, told the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

import pytest
from tests.support import compose
from tests.unit.deploy.manifests import OVERLAYS, ROOT, Workload, environment, objects, workloads

from parrot_engine.settings import EngineSettings
from parrot_gateway.settings import GatewaySettings
from parrot_manager.settings import ManagerSettings
from parrot_runtime.settings import ServiceSettings

CLASSES: Final[Mapping[str, type[ServiceSettings]]] = {
    "parrot-gateway": GatewaySettings,
    "parrot-manager": ManagerSettings,
    "parrot-engine": EngineSettings,
}
SERVICES: Final = compose.composed()["services"]
PODS: Final = {one.name: one for one in workloads(objects("dev"))}
PAIRS: Final = {"gateway": "gateway", "manager-a": "manager", "engine": "engine", "migrations": "migrate"}
"""Services of the one, and what they are in the other."""
ADDRESSES: Final = {
    # Names of what is where, and of who somebody is.
    "nats_url",
    "manager_address",
    "postgres_url",
    "advertise",
    "manager_id",
    "engine_id",
    "cache_dir",
}
PATIENCE: Final = {
    # Compose starts one after the other. On a cluster all come at once, and wait for one another; and what
    # runs is given longer to end.
    "gateway": {"connect_timeout_s", "stop_s"},
    "manager-a": {"connect_timeout_s"},
    "engine": {"connect_timeout_s", "drain_s"},
    "migrations": {"connect_timeout_s"},
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_service_is_told_the_same_in_both_but_where_things_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, pod = SERVICES[name], PODS[PAIRS[name]]
    here = settings_of(service, compose.environment_of(service), service.get("command", []), monkeypatch)
    container = pod.containers[0]
    told = compose.image_environment(compose.dockerfile_of(service)) | environment(container, objects("dev"))
    there = settings_of(service, told, container.get("args", []), monkeypatch)
    other = {field for field in here if here[field] != there[field]}
    assert other - ADDRESSES == PATIENCE[name]


@pytest.mark.parametrize("name", [*PAIRS, "nats", "postgres"])
def test_a_service_is_the_same_image_in_both(name: str) -> None:
    assert SERVICES[name]["image"] == PODS[PAIRS.get(name, name)].containers[0]["image"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_pod_starts_the_program_that_its_image_is_for(name: str) -> None:
    entry = dict(compose.image(compose.dockerfile_of(SERVICES[name])))["ENTRYPOINT"]
    assert PODS[PAIRS[name]].containers[0]["command"] == json.loads(entry)


def test_prometheus_is_the_same_image_in_both() -> None:
    (there,) = [one for one in workloads(objects("production")) if one.name == "prometheus"]
    assert SERVICES["prometheus"]["image"] == there.containers[0]["image"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_image_of_ours_can_be_built(overlay: str) -> None:
    for one in workloads(objects(overlay)):
        for image in images_of(one):
            assert (ROOT / "docker" / f"{image}.Dockerfile").exists(), image


def images_of(one: Workload) -> list[str]:
    """The images of a pod that are built here, without the version."""
    names = [container["image"].partition(":")[0] for container in one.containers]
    return [name.removeprefix("parrot/") for name in names if name.startswith("parrot/")]


def settings_of(
    service: Mapping[str, Any], told: Mapping[str, str], args: list[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What a service's process reads, as its settings."""
    entry = dict(compose.image(compose.dockerfile_of(service)))["ENTRYPOINT"]
    with monkeypatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PARROT_")]:
            patch.delenv(name)
        for name, value in told.items():
            if name.startswith("PARROT_"):
                patch.setenv(name, value)
        return CLASSES[json.loads(entry)[0]].load(args).model_dump()
