"""The Postgres that an operator keeps is reached by managers alone, and loses nothing that was promised."""

from __future__ import annotations

import pytest
from tests.unit.deploy.manifests import Object, of_kind, reaches, workloads
from tests.unit.deploy.variants import needs_kubectl, variant_objects

pytestmark = needs_kubectl
SERVER = {"cnpg.io/cluster": "parrot-db"}


@pytest.fixture(scope="module")
def found() -> list[Object]:
    """The overlay for GPUs with a Postgres of an operator's."""
    return variant_objects("gpu+cloudnative-pg")


def test_managers_and_migrations_reach_it_and_nobody_else_of_ours(found: list[Object]) -> None:
    ways = {
        (one.name, port)
        for one in workloads(found)
        for port in (5432, 8000)
        if reaches(found, one.labels, SERVER, port)
    }
    assert ways == {("manager", 5432), ("migrate", 5432)}


def test_managers_are_let_out_to_no_other_database(found: list[Object]) -> None:
    elsewhere = {"app": "another"}
    for one in [one for one in workloads(found) if one.name in {"manager", "migrate"}]:
        assert not reaches(found, one.labels, elsewhere, 5432)


def test_it_reaches_itself_and_nothing_of_ours(found: list[Object]) -> None:
    assert reaches(found, SERVER, SERVER, 5432)
    for one in workloads(found):
        ports = [port["containerPort"] for item in one.containers for port in item.get("ports", [])]
        assert not [port for port in ports if reaches(found, SERVER, one.labels, port)]


def test_what_is_accepted_is_on_two_disks_before_anybody_hears_of_it(found: list[Object]) -> None:
    (cluster,) = of_kind(found, "Cluster")
    spec = cluster["spec"]
    assert spec["instances"] >= 3
    assert spec["postgresql"]["synchronous"] == {"method": "any", "number": 1, "dataDurability": "required"}


def test_it_is_of_the_release_that_is_tested(found: list[Object]) -> None:
    (cluster,) = of_kind(found, "Cluster")
    (tested,) = [one for one in workloads(variant_objects("dev")) if one.name == "postgres"]
    versions = [
        image.rpartition(":")[2].partition("-")[0]
        for image in (cluster["spec"]["imageName"], tested.containers[0]["image"])
    ]
    assert versions[0] == versions[1]
