"""docker-compose.yml: what it starts fits together, is pinned, and has no more rights than it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support import compose

from parrot_engine.settings import EngineSettings
from parrot_gateway.settings import GatewaySettings
from parrot_manager.settings import ManagerSettings
from parrot_runtime.settings import ServiceSettings

SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "parrot-gateway": GatewaySettings,
    "parrot-manager": ManagerSettings,
    "parrot-engine": EngineSettings,
}
DOCUMENT = compose.composed()
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
OURS = compose.ours(DOCUMENT)
ENGINES = [name for name in OURS if name.startswith("engine")]
DAEMONS = {name: service for name, service in OURS.items() if service["restart"] != "no"}


def settings_of(service: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """What a container of ours would read at its start."""
    for name in [name for name in os.environ if name.startswith("PARROT_")]:
        monkeypatch.delenv(name)
    for name, value in compose.environment_of(service).items():
        if name.startswith("PARROT_"):
            monkeypatch.setenv(name, value)
    return class_of(service).load(service.get("command", []))


def class_of(service: Mapping[str, Any]) -> type[ServiceSettings]:
    entry = dict(compose.image(compose.dockerfile_of(service)))["ENTRYPOINT"]
    return SETTINGS[json.loads(entry)[0]]


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None, text
    return float(found[1])


def test_composes_own_parser_takes_it() -> None:
    program = compose.tool("docker-compose")
    if program is None:
        pytest.skip("there is no docker-compose here")
    command = [program, "--file", str(compose.COMPOSE), "--profile", "*", "config", "--quiet"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", OURS)
def test_a_service_takes_its_command_line_and_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(OURS[name], monkeypatch)
    assert settings.nats_url == "nats://nats:4222"


@pytest.mark.parametrize("name", OURS)
def test_a_service_knows_every_variable_it_is_given(name: str) -> None:
    known = {f"PARROT_{field.upper()}" for field in class_of(OURS[name]).model_fields}
    given = {name for name in compose.environment_of(OURS[name]) if name.startswith("PARROT_")}
    assert given - known == set()


@pytest.mark.parametrize("name", ["gateway", *ENGINES])
def test_every_manager_is_known_by_the_address_it_gives_itself(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers = {key: settings_of(OURS[key], monkeypatch) for key in DAEMONS if key.startswith("manager-")}
    told = getattr(settings_of(OURS[name], monkeypatch), "manager_address", "")
    assert len(managers) == 2
    assert told.split(",") == [getattr(manager, "advertise", "") for manager in managers.values()]
    for key, manager in managers.items():
        assert isinstance(manager, ManagerSettings)
        assert manager.manager_id == key
        assert manager.advertise == f"{key}:{manager.listen.rpartition(':')[2]}"
        assert manager.listen.startswith("0.0.0.0:")


@pytest.mark.parametrize("name", ["migrations", "manager-a", "manager-b"])
@pytest.mark.parametrize("variables", [{}, {"POSTGRES_PASSWORD": "another"}])
def test_the_database_is_opened_with_what_it_was_made_with(name: str, variables: dict[str, str]) -> None:
    services = compose.composed(variables)["services"]
    made, url = services["postgres"]["environment"], services[name]["environment"]["PARROT_POSTGRES_URL"]
    parts = urlsplit(url)
    assert (parts.hostname, parts.port) == ("postgres", 5432)
    assert parts.username == made["POSTGRES_USER"]
    assert parts.password == made["POSTGRES_PASSWORD"] == variables.get("POSTGRES_PASSWORD", "parrot")
    assert parts.path == f"/{made['POSTGRES_DB']}"


def test_the_schema_is_brought_up_to_date_once_before_any_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    migrating = settings_of(OURS["migrations"], monkeypatch)
    assert isinstance(migrating, ManagerSettings)
    assert migrating.migrate
    for name in ("manager-a", "manager-b"):
        waits_for = OURS[name]["depends_on"]["migrations"]["condition"]
        assert waits_for == "service_completed_successfully"
        assert OURS[name]["image"] == OURS["migrations"]["image"]


def test_the_gateway_lets_others_in_with_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = settings_of(OURS["gateway"], monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert (gateway.host, gateway.keys) == ("0.0.0.0", True)  # noqa: S104
    assert OURS["gateway"]["ports"] == [f"127.0.0.1:8080:{gateway.port}"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_port_is_published_to_this_machine_alone(name: str) -> None:
    ports = SERVICES[name].get("ports", [])
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    if not ports:
        assert "edge" not in SERVICES[name]["networks"]


@pytest.mark.parametrize("network", ["backend", "database"])
def test_the_servers_own_networks_lead_nowhere(network: str) -> None:
    assert DOCUMENT["networks"][network] == {"internal": True}


def test_only_managers_reach_the_database() -> None:
    there = {name for name, service in SERVICES.items() if "database" in service["networks"]}
    assert there == {"postgres", "migrations", "manager-a", "manager-b"}
    assert SERVICES["postgres"]["networks"] == ["database"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_rights_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert ("cap_add" in service) is (name == "postgres")


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_pinned(name: str) -> None:
    repository, _, tag = SERVICES[name]["image"].partition(":")
    assert repository
    assert re.match(r"v?\d+\.\d+", tag), tag
    # What is built here is never taken from a registry, where anybody may have put that name.
    assert (SERVICES[name].get("pull_policy") == "build") is (name in OURS)


@pytest.mark.parametrize("name", SERVICES)
def test_who_is_waited_for_can_say_that_it_is_ready(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        service = SERVICES[other]
        if how["condition"] != "service_healthy":
            continue
        checked = "healthcheck" in service
        if other in OURS:
            checked = "HEALTHCHECK" in dict(compose.image(compose.dockerfile_of(service)))
        assert checked, other


@pytest.mark.parametrize("name", DAEMONS)
def test_a_service_has_longer_to_stop_than_it_drains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(DAEMONS[name], monkeypatch)
    drains: float = settings.model_dump()["stop_s" if name == "gateway" else "drain_s"]
    assert seconds(DAEMONS[name]["stop_grace_period"]) >= drains + 5


@pytest.mark.parametrize(("name", "folder"), [("nats", "/data"), ("postgres", "/var/lib/postgresql")])
def test_what_must_last_is_on_a_volume(name: str, folder: str) -> None:
    volume, _, target = SERVICES[name]["volumes"][0].partition(":")
    assert volume in DOCUMENT["volumes"]
    assert target == folder


@pytest.mark.parametrize("name", ["engine", "engine-gpu"])
def test_the_cache_of_models_is_where_the_engine_keeps_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = settings_of(OURS[name], monkeypatch)
    assert isinstance(engine, EngineSettings)
    assert f"models:{engine.cache_dir}" in OURS[name]["volumes"]


@pytest.mark.parametrize(("variables", "engines"), [({}, 1), ({"CPU_ENGINES": "0"}, 0)])
def test_an_engine_on_the_cpu_is_started_unless_none_is_wanted(
    variables: dict[str, str], engines: int
) -> None:
    services = compose.composed(variables)["services"]
    assert services["engine"]["scale"] == engines
    assert "profiles" not in services["engine"]
    assert services["engine-gpu"]["profiles"] == ["gpu"]
    assert services["engine-sandbox"]["profiles"] == ["sandbox"]


def test_an_engine_on_gpus_has_as_many_as_it_spreads_its_model_over(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PARROT_TENSOR_PARALLEL_SIZE": "2", "PARROT_MODEL": "/models/one", "MODELS": "/srv/models"}
    service = compose.composed(variables)["services"]["engine-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"], device["count"]) == ("nvidia", ["gpu"], "2")
    engine = settings_of(service, monkeypatch)
    assert isinstance(engine, EngineSettings)
    assert engine.tensor_parallel_size == 2
    assert engine.model == "/models/one"
    assert "/srv/models:/models:ro" in service["volumes"]


def test_code_of_users_is_taken_where_an_engine_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = settings_of(OURS["engine-sandbox"], monkeypatch)
    assert isinstance(engine, EngineSettings)
    assert engine.backend == "sandbox"
    for name in ("manager-a", "manager-b"):
        for said, taken in (({}, False), ({"PARROT_SANDBOX": "true"}, True)):
            manager = settings_of(compose.composed(said)["services"][name], monkeypatch)
            assert isinstance(manager, ManagerSettings)
            assert manager.sandbox is taken


def test_a_real_nats_server_takes_its_command_line(tmp_path: Path) -> None:
    program = compose.tool("nats-server")
    assert program is not None
    name, *flags = SERVICES["nats"]["command"]
    assert name == "nats-server"
    config = tmp_path / "nats.conf"
    config.write_text("host: 127.0.0.1\n")
    command = [program, *[str(tmp_path) if flag == "/data" else flag for flag in flags]]
    # It tells of a flag it doesn't know with 0, too.
    check = subprocess.run(
        [*command, "--config", str(config), "-t"], check=False, capture_output=True, text=True, timeout=20
    )
    assert "is valid" in check.stdout + check.stderr
