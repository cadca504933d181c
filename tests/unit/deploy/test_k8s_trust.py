"""What components/tls and its companions make of the pods: certificates where they belong, and no more."""

from __future__ import annotations

import re

import pytest
from tests.unit.deploy.manifests import ROOT, Object, Workload, environment, objects, of_kind, workloads

from parrot_manager.callers import ALLOWED
from parrot_runtime.tls import MANAGER

FOUND = objects("production")
SERVICES = ("gateway", "manager", "engine")
SERVERS = ("manager", "nats")


def workload(name: str) -> Workload:
    """The one of a name."""
    return next(one for one in workloads(FOUND) if one.name == name)


def certificates() -> dict[str, Object]:
    """What the certificates are of, by the Secrets they go to; not the authority's own."""
    return {
        item["spec"]["secretName"]: item["spec"]
        for item in of_kind(FOUND, "Certificate")
        if not item["spec"].get("isCA")
    }


def secret_of(name: str) -> Object:
    """The Secret that a workload's certificate comes from."""
    (volume,) = [one for one in workload(name).pod["volumes"] if one["name"] == "tls"]
    return dict(volume["secret"])


@pytest.mark.parametrize("name", [*SERVICES, "nats", "migrate"])
def test_a_pod_has_its_own_role_s_certificate_alone_for_its_own_group(name: str) -> None:
    secret = secret_of(name)
    role = "owner" if name == "migrate" else name
    assert secret["secretName"] == f"parrot-tls-{role}"
    assert int(str(secret["defaultMode"]), 10) == 0o440
    assert workload(name).pod["securityContext"]["fsGroup"] == 10001


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_told_where_its_certificate_lies(name: str) -> None:
    (container,) = workload(name).containers
    told = environment(container, FOUND)
    (mount,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "tls"]
    names = {"PARROT_TLS_CERT": "tls.crt", "PARROT_TLS_KEY": "tls.key", "PARROT_TLS_CA": "ca.crt"}
    assert {name: told[name] for name in names} == {name: f"{mount}/{end}" for name, end in names.items()}
    assert all(url.startswith("tls://") for url in told["PARROT_NATS_URL"].split(","))


def test_certificates_have_the_names_that_are_asked_for() -> None:
    spec = certificates()
    assert spec["parrot-tls-manager"]["dnsNames"] == [MANAGER]
    for role in ALLOWED:
        assert spec[f"parrot-tls-{role}"]["dnsNames"] == [role]
    (container,) = workload("gateway").containers
    urls = environment(container, FOUND)["PARROT_NATS_URL"].split(",")
    assert {re.split("://|:", url)[1] for url in urls} <= set(spec["parrot-tls-nats"]["dnsNames"])


def test_only_what_is_dialled_may_be_a_server() -> None:
    for name, spec in certificates().items():
        is_server = name.removeprefix("parrot-tls-") in SERVERS
        assert ("server auth" in spec["usages"]) is is_server, name
        assert "client auth" in spec["usages"], name


def test_no_pod_has_the_authority_s_key_nor_the_operator_s() -> None:
    text = str([one.item for one in workloads(FOUND)])
    assert "parrot-authority" not in text
    assert "parrot-tls-operator" not in text


def test_common_names_are_those_that_postgres_knows() -> None:
    lines = (ROOT / "deploy" / "postgres" / "pg_ident.conf").read_text().splitlines()
    mapped = {line.split()[1] for line in lines if line and not line.startswith("#")}
    assert {"manager", "owner"} <= mapped
    assert {certificates()[f"parrot-tls-{role}"]["commonName"] for role in ("manager", "owner")} <= mapped


def test_migrations_and_managers_come_to_postgres_as_different_roles() -> None:
    secrets = {}
    for name in ("migrate", "manager"):
        (container,) = workload(name).containers
        (url,) = [one for one in container["env"] if one["name"] == "PARROT_POSTGRES_URL"]
        secrets[name] = url["valueFrom"]["secretKeyRef"]["name"]
    assert secrets == {"migrate": "parrot-postgres-owner", "manager": "parrot-postgres"}
