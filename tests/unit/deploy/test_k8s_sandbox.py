"""Where code of users runs on the server, it runs apart from all else."""

from __future__ import annotations

import os

import pytest
from tests.unit.deploy.manifests import Object, Workload, environment, of_kind, reaches, workloads
from tests.unit.deploy.variants import needs_kubectl, variant_objects

from parrot_engine.settings import EngineSettings
from parrot_manager.settings import ManagerSettings

pytestmark = needs_kubectl
PORTS = {
    "gateway": (8080, 9402),
    "manager": (7400, 9401),
    "engine": (9400,),
    "nats": (4222, 6222, 8222),
    "postgres": (5432,),
    "sandbox": (9400,),
}


@pytest.fixture(scope="module")
def found() -> list[Object]:
    """The development overlay with the sandbox."""
    return variant_objects("dev+sandbox")


@pytest.fixture
def sandbox(found: list[Object]) -> Workload:
    """What runs code of users."""
    (one,) = [one for one in workloads(found) if one.name == "sandbox"]
    return one


def test_it_reaches_managers_and_the_bus_and_nothing_else(found: list[Object], sandbox: Workload) -> None:
    ways = {
        (one.name, port)
        for one in workloads(found)
        for port in PORTS.get(one.name, ())
        if reaches(found, sandbox.labels, one.labels, port)
    }
    assert ways == {("manager", 7400), ("nats", 4222)}


def test_nothing_of_ours_reaches_it(found: list[Object], sandbox: Workload) -> None:
    assert not [one.name for one in workloads(found) if reaches(found, one.labels, sandbox.labels, 9400)]


def test_it_has_an_account_of_its_own_and_no_volume_that_lasts(
    found: list[Object], sandbox: Workload
) -> None:
    accounts = [one.pod["serviceAccountName"] for one in workloads(found)]
    assert accounts.count(sandbox.pod["serviceAccountName"]) == 1
    assert all("emptyDir" in volume for volume in sandbox.pod["volumes"])


def test_managers_take_code_and_its_engine_runs_it(
    found: list[Object], sandbox: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manager,) = [one for one in workloads(found) if one.name == "manager"]
    for name in [name for name in os.environ if name.startswith("PARROT_")]:
        monkeypatch.delenv(name)
    with monkeypatch.context() as patch:
        for name, value in environment(manager.containers[0], found).items():
            patch.setenv(name, value)
        assert ManagerSettings.load([]).sandbox
    for name, value in environment(sandbox.containers[0], found).items():
        monkeypatch.setenv(name, value)
    settings = EngineSettings.load([])
    assert settings.backend == "sandbox"
    # Whatever a function asks for, it has ended when its pod is killed.
    assert settings.drain_s >= settings.sandbox_timeout_s
    assert sandbox.pod["terminationGracePeriodSeconds"] >= settings.drain_s + 10


def test_its_memory_is_enough_for_as_many_functions_as_it_runs_at_once(sandbox: Workload) -> None:
    limit = sandbox.containers[0]["resources"]["limits"]["memory"]
    at_once_mib = 4 * EngineSettings.model_fields["sandbox_memory_mib"].default
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) * 1024 >= at_once_mib + 512


def test_without_it_nothing_runs_code_of_users() -> None:
    for overlay in ("dev", "gpu", "production"):
        for one in workloads(variant_objects(overlay)):
            assert one.name != "sandbox"
            told = {entry["name"] for container in one.containers for entry in container.get("env", [])}
            assert "PARROT_SANDBOX" not in told


def test_its_policies_name_it_alone(found: list[Object]) -> None:
    bare = {item["metadata"]["name"] for item in of_kind(variant_objects("dev"), "NetworkPolicy")}
    added = {item["metadata"]["name"] for item in of_kind(found, "NetworkPolicy")} - bare
    assert added == {"sandbox", "sandbox-manager", "sandbox-nats"}
